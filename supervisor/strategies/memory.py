"""Steps for memory that does not suffice, on the GPU or on the host: the smallest change that keeps the training the same comes first.

knobs/batch.py does the arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.remedies import hints, is_in_save
from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.model import BEFORE_FIRST_STEP, Cause, Change, Phase, Plan, PlanKind
from supervisor.core.units import bytes_text
from supervisor.core.values import replace
from supervisor.knobs import batch
from supervisor.knobs.bindings import ON, option
from supervisor.strategies import plans, shortage
from supervisor.strategies.ladder_step import ladder_step
from supervisor.strategies.repetition import restart_within_budget
from supervisor.strategies.situation import ALLOCATOR, BATCH_KNOBS, may_halve_workers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.core.model import Knob
    from supervisor.strategies.situation import Situation

#: Memory held by others, or in pieces, is to blame from this share of the GPU or from this amount on.
LEAST_SHARE = 0.1
LEAST_BYTES = 1 << 30
SETTING = "expandable_segments:True"
BATCHNORM = "the model has BatchNorm: its statistics are of the micro-batch, so the training is not quite the same with a smaller one"
#: The one that changes the numbers: only a declaration of the user's enables it, and never a program's row.
PRECISION = "mixed_precision"
#: Switches that save memory, those that keep the numbers first, the cheapest first.
SWITCHES = {
    "activation_checkpointing": "computes activations twice",
    "cpu_offload": "moves state over PCIe in each step",
    PRECISION: "rounds more coarsely",
}
COARSER = (
    "mixed precision changes the numbers of the training from here on, as the declared knob permits; compare the loss with the one before"
)
WORKERS = "num_workers"
#: Phases in which nothing shows whether a step was made, unless it is proven that none was.
_NO_STEP_SEEN = BEFORE_FIRST_STEP | {Phase.UNKNOWN}
STEP_UNKNOWN = "nothing shows at which step the memory ran out: one plain restart comes before a change"


@ladder_step("another process holds the GPU: alert, restart unchanged, then stop (69)", tried="a wait for the GPU's memory")
def memory_held_by_others(situation: Situation) -> Plan | None:
    """Restart unchanged and alert if a stranger holds a tenth of the GPU or 1 GiB; stop with 69 once the budget is spent.

    In a container the pids in torch's list may be of another namespace (classify/gpu/memory.py). Others' memory then is treated as a
    stranger's only if this node has one rank: several ranks that all put something on the first GPU are the commoner case. The job's own
    orphans are killed between attempts; whatever remains is a stranger's and is left alone.
    """
    held, capacity = situation.amount("other_bytes"), situation.amount("capacity")
    named = situation.fact("other_pids").split()
    strangers = [pid for pid in named if not pid.isdigit() or int(pid) not in situation.pids]
    if not held or (not strangers if named else situation.ranks != 1):
        return None
    if held < LEAST_BYTES and (not capacity or held < capacity * LEAST_SHARE):
        return None
    holder = f"process{'es' * (len(strangers) > 1)} {', '.join(strangers)}" if strangers else "another process"
    several = len(strangers) > 1
    finding = f"{holder} {'hold' if several else 'holds'} {bytes_text(held)} of the GPU and {'are' if several else 'is'} not of this job"
    plan = restart_within_budget(situation)
    name = "memory_held_by_others"
    if plan.kind is PlanKind.STOP:
        return replace(
            plan, strategy=name, reason=f"{finding}; {plan.reason}", next_ladder_step=f"end {holder}, or use another GPU", exit_code=69
        )
    return replace(
        plan,
        strategy=name,
        reason=f"{finding}: the batch is not the reason, and stays",
        alert=f"{finding}; end it, or give the job a GPU of its own",
        alert_kind="memory_held",
    )


@ladder_step(
    "memory in pieces: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, the same batch", tried="expandable segments", changes_job=True
)
def expandable_segments(situation: Situation) -> Plan | None:
    """Set the allocator, once, if at least a tenth of the GPU or 1 GiB is reserved and not allocated.

    torch's own message calls this memory "reserved by PyTorch but unallocated" and advises this variable. The launcher keeps what the user
    has in the variable. A user who set expandable_segments or another allocator has decided, and the step has no answer.
    """
    unused, capacity = situation.amount("reserved_unallocated"), situation.amount("capacity")
    if unused < LEAST_BYTES and (not capacity or unused < capacity * LEAST_SHARE):
        return None
    old = dict(situation.overrides).get(ALLOCATOR) or situation.policy.allocator
    if "expandable_segments" in old or "cudaMallocAsync" in old:
        return None
    return plans.restart(
        "expandable_segments",
        f"{bytes_text(unused)} are reserved by torch and unused, in pieces too small: the same batch with {SETTING}",
        changes=(Change(ALLOCATOR, old, SETTING, "PYTORCH_CUDA_ALLOC_CONF"),),
    )


def at_unknown_step(situation: Situation) -> bool:
    """Whether this is the first such failure, and nothing shows where in the training it was.

    Then it may be one rare long batch, as late in the training, and the same command again may do. An OOM at a known step gets no plain
    restart: at the first it would come again, and later the smaller batch costs no more than the restart.
    """
    seen = situation.before_first_step or situation.step is not None or situation.counted is not None
    return not seen and situation.phase in _NO_STEP_SEEN and not situation.unanswered


def _halve_batch_missing(situation: Situation) -> str:
    """Return why the batch is not halved: a knob that is not enabled, or figures that do not divide."""
    if not situation.policy.batch_change:
        return "a smaller micro-batch would need less memory: --no-batch-change forbids it"
    if situation.disputes:
        name, in_rank, in_command = situation.disputes[0]
        return f"a rank trains with {name} {in_rank}, the command says {in_command}: --knob {name}=--YOUR-FLAG names what sets it"
    size, accum = situation.enabled("batch_size"), situation.enabled("grad_accum")
    if size is None and accum is None:
        likely = dict(situation.policy.likely)
        lone = "batch_size" in likely and "grad_accum" not in likely
        alone = "; without such a flag --allow-batch-drift lets the global batch shrink" if lone else ""
        return (
            f"a smaller micro-batch would need less memory, at the same global batch: {batch_options(likely.items())} enables that{alone}"
        )
    if size is None or accum is None:
        return _other_knob_missing(size, situation)
    old = batch.read(size, accum, situation.replicas)
    new = batch.smaller(old) if isinstance(old, batch.Batch) else old
    return new if isinstance(new, str) else STEP_UNKNOWN if at_unknown_step(situation) else ""


@ladder_step(
    "the next smaller micro-batch that keeps the global batch, with more accumulation (12, 6, 4, 3, 2, 1); repeated down to 1",
    tried="a smaller micro-batch",
    changes_job=True,
    wants=tuple(sorted(BATCH_KNOBS)),
    missing=_halve_batch_missing,
)
def halve_batch(situation: Situation) -> Plan | None:
    """Take the next smaller micro-batch that keeps the global batch, so that learning rate, schedule and loss keep their meaning.

    The accumulation makes up for it. Sizes that the message rules out are passed over (shortage.py). The step may be taken again, down
    to 1. If the program has no accumulation to declare, --allow-batch-drift consents to a smaller global batch.
    """
    if at_unknown_step(situation):
        return None
    size, accum = situation.enabled("batch_size"), situation.enabled("grad_accum")
    if size is not None and accum is None:
        return _halve_alone(size, situation)
    if size is None or accum is None:
        return None
    old, lack = batch.read(size, accum, situation.replicas), shortage.of_message(situation)
    if isinstance(old, str):
        return None
    new, following = batch.smaller(old, lack.most(old.micro) if lack else None), batch.smaller(old)
    if isinstance(new, str):
        return None
    changes = batch.changes(new, size, accum)
    why = (lack.arithmetic(old.micro),) if lack and new != following else ()
    return plans.restart(
        "halve_batch",
        "; ".join((*(f"{change.how} {change.old} → {change.new}" for change in changes), *why)),
        changes=changes,
        notes=(f"the global batch stays: {old}, now {new}", *((BATCHNORM,) if situation.batchnorm else ())),
    )


def _halve_alone(size: Knob, situation: Situation) -> Plan | None:
    """Halve the batch size, and the global batch with it, if the user consented and no rank disputes the accumulation."""
    if not situation.policy.restart.batch_drift or situation.disputes:
        return None
    lack, now = shortage.of_message(situation), int(size.value) if size.value.isdigit() else 0
    new = batch.halved_alone(size, situation.replicas, lack.most(now) if lack else None)
    if isinstance(new, str):
        return None
    why = f"; {lack.arithmetic(now)}" if lack and new != batch.halved_alone(size, situation.replicas) else ""
    change = Change(size.name, size.value, str(new), size.how)
    ranks = situation.replicas if size.counts != "global" else 1
    before, after = (f"{ranks * int(n)}" if ranks else f"ranks × {n}" for n in (size.value, new))  # noqa: RUF001 (the sign)
    note = f"the global batch shrinks from {before} to {after}, as --allow-batch-drift permits; the learning rate stays as it is"
    return plans.restart(
        "halve_batch",
        f"{change.how} {change.old} → {change.new}{why}",
        changes=(change,),
        notes=(note, *((BATCHNORM,) if situation.batchnorm else ())),
    )


def batch_options(likely: Iterable[tuple[str, str]]) -> str:
    """Return the options that enable halve_batch. likely: of Policy."""
    known = tuple(likely)
    return " ".join(option(name, known) for name in ("batch_size", "grad_accum"))


def _other_knob_missing(size: Knob | None, situation: Situation) -> str:
    """Return what helps if only one of the two knobs is known."""
    name = "batch_size" if size is None else "grad_accum"
    both = f"the global batch can only be kept with both: {option(name, situation.policy.likely)} is missing"
    if size is None:
        return both
    alone = batch.halved_alone(size, situation.replicas)
    if situation.policy.restart.batch_drift:
        return alone if isinstance(alone, str) else STEP_UNKNOWN if at_unknown_step(situation) else ""
    return f"{both}; --allow-batch-drift lets the global batch shrink"


def _memory_knobs_missing(situation: Situation) -> str:
    if any((knob := situation.enabled(name)) is not None and knob.value != ON for name in SWITCHES):
        return STEP_UNKNOWN if at_unknown_step(situation) else ""
    known = [text for name, text in situation.policy.likely if name in SWITCHES]
    return f"the script has a switch that saves memory: {known[0]} enables it" if known else ""


@ladder_step(
    "activation checkpointing, then CPU offload, then mixed precision, where declared",
    tried="activation checkpointing, CPU offload or mixed precision",
    changes_job=True,
    wants=SWITCHES,
    wants_one=True,
    missing=_memory_knobs_missing,
)
def memory_knobs(situation: Situation) -> Plan | None:
    """Turn on the first of SWITCHES that is enabled and not on yet."""
    if at_unknown_step(situation):
        return None
    for name, cost in SWITCHES.items():
        knob = situation.enabled(name)
        if knob is not None and knob.value != ON:
            return plans.restart(
                "memory_knobs",
                f"{name.replace('_', ' ')} on ({knob.how}): the same batch in less memory; it {cost}",
                notes=(COARSER,) if name == PRECISION else (),
                changes=(Change(name, knob.value or "off", ON, knob.how),),
            )
    return None


def _halve_workers_missing(situation: Situation) -> str:
    """Return the setting that would enable fewer workers, where they would help; of a save its smaller need."""
    if situation.verdict.cause is Cause.HOST_OOM and is_in_save(situation.verdict):
        return hints(situation.verdict)[0]
    knob = situation.enabled(WORKERS)
    if not _workers_failed_before(situation) or not may_halve_workers(situation):
        return ""
    if knob is None:
        return f"fewer loader workers would need less memory: {option(WORKERS, situation.policy.likely)} enables that"
    return "" if knob.value else f"how many loader workers there are is not known: write {knob.how} out in the command"


@ladder_step(
    "after one restart: num_workers halved, down to 0",
    tried="fewer loader workers",
    changes_job=True,
    wants=(WORKERS,),
    missing=_halve_workers_missing,
)
def halve_workers(situation: Situation) -> Plan | None:
    """Halve num_workers, down to 0, at the second failure of host memory or of loader workers without progress, and at each later one.

    Not where a save ran out of memory, nor where the rank is known to have no loader with workers: fewer of them would free nothing.
    """
    knob = situation.enabled(WORKERS)
    if (
        not _workers_failed_before(situation)
        or not may_halve_workers(situation)
        or knob is None
        or not knob.value.isdigit()
        or int(knob.value) == 0
    ):
        return None
    old = int(knob.value)
    return plans.restart(
        "halve_workers",
        f"{old} loader workers in each rank need more memory than there is: {old // 2} of them ({knob.how})",
        changes=(Change(WORKERS, str(old), str(old // 2), knob.how),),
    )


def _workers_failed_before(situation: Situation) -> bool:
    return any(CAUSE_TABLE[f.cause].of_workers and not f.is_over for f in situation.failures)
