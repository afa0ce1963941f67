"""Half the micro-batch and twice the accumulation: less memory for the same training.

The global batch stays what the user asked for, so that learning rate, schedule and loss mean what they meant; where that cannot be, the
rung has no answer, and says which figures are in its way. It may be taken again, down to a micro-batch of 1. Where the program has no
accumulation to declare, --allow-batch-drift consents to a smaller global batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Change, Plan, PlanKind
from supervisor.knobs import batch

if TYPE_CHECKING:
    from supervisor.core.model import Knob
    from supervisor.strategies.situation import Situation

NAME = "halve_batch"
BATCHNORM = "the model has BatchNorm: its statistics are of the micro-batch, so the training is not quite the same with a smaller one"
ARMS = "--knob batch_size=--YOUR-FLAG --knob grad_accum=--YOUR-FLAG"


def propose(situation: Situation) -> Plan | None:
    """Halve the micro-batch at an equal global batch."""
    size, accum = situation.armed("batch_size"), situation.armed("grad_accum")
    if size is not None and accum is None:
        return _alone(size, situation)
    if size is None or accum is None:
        return None
    old = batch.read(size, accum, situation.world_size)
    new = batch.halved(old) if isinstance(old, batch.Batch) else old
    if isinstance(new, str) or isinstance(old, str):
        return None
    changes = batch.changes(new, size, accum)
    return Plan(
        kind=PlanKind.RESTART,
        reason="; ".join(f"{change.how} {change.old} → {change.new}" for change in changes),
        next_rung="",
        strategy=NAME,
        changes=changes,
        told=(f"the global batch stays: {old}, now {new}", *((BATCHNORM,) if situation.batchnorm else ())),
    )


def _missing(size: Knob | None, situation: Situation) -> str:
    """Return what helps where only one of the two is known."""
    name = "batch_size" if size is None else "grad_accum"
    kept = f"the global batch can only be kept with both: --knob {name}=--YOUR-FLAG is missing"
    if size is None:
        return kept
    alone = batch.halved_alone(size, situation.world_size)
    if situation.policy.batch_drift:
        return alone if isinstance(alone, str) else ""
    return f"{kept}; --allow-batch-drift lets the global batch shrink"


def _alone(size: Knob, situation: Situation) -> Plan | None:
    """Halve the batch size alone, and the global batch with it, where the user consented and nothing of the accumulation is in dispute."""
    if not situation.policy.batch_drift or situation.disputes:
        return None
    new = batch.halved_alone(size, situation.world_size)
    if isinstance(new, str):
        return None
    change = Change(size.name, size.value, str(new), size.how)
    ranks = situation.world_size if size.counts != "global" else 1
    was, becomes = (f"{ranks * int(n)}" if ranks else f"ranks × {n}" for n in (size.value, new))  # noqa: RUF001 (the sign)
    note = f"the global batch shrinks from {was} to {becomes}, as --allow-batch-drift permits; the learning rate stays as it is"
    return Plan(
        kind=PlanKind.RESTART,
        reason=f"{change.how} {change.old} → {change.new}",
        next_rung="",
        strategy=NAME,
        changes=(change,),
        told=(note, *((BATCHNORM,) if situation.batchnorm else ())),
    )


def lacks(situation: Situation) -> str:
    """Return why the batch is not halved: what is not armed, or the figures that do not divide."""
    if not situation.policy.batch_change:
        return "a smaller micro-batch would need less memory: --no-batch-change forbids it"
    if situation.disputes:
        name, seen, said = situation.disputes[0]
        return f"a rank trains with {name} {seen}, the command says {said}: --knob {name}=--YOUR-FLAG names what sets it"
    size, accum = situation.armed("batch_size"), situation.armed("grad_accum")
    if size is None and accum is None:
        return f"a smaller micro-batch would need less memory, at the same global batch: {ARMS} arms that"
    if size is None or accum is None:
        return _missing(size, situation)
    old = batch.read(size, accum, situation.world_size)
    new = batch.halved(old) if isinstance(old, batch.Batch) else old
    return new if isinstance(new, str) else ""
