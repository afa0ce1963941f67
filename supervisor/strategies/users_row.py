"""The step of the user's own rows: [recover.CAUSE] of the settings says what to change after a failure of that cause.

It is before the built-in steps of its cause. A row is the user's consent, so it needs no sure verdict; but each knob in it must be
enabled. It acts once in a run. A later change by another step stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Change, Plan
from supervisor.core.values import replace
from supervisor.knobs import batch
from supervisor.knobs.bindings import ALONE
from supervisor.strategies import plans
from supervisor.strategies.ladder_step import ladder_step
from supervisor.strategies.own_change import NAME as OWN_CHANGE

if TYPE_CHECKING:
    from supervisor.core.model import Cause, Policy
    from supervisor.strategies.situation import Situation

NAME = "users_row"
ENV = "env:"


def row_of(cause: Cause, policy: Policy) -> tuple[tuple[str, str], ...]:
    """Return what the user's row sets for a cause, by knob, flag or `env:NAME`; nothing where there is no row."""
    return dict(policy.recover).get(cause.value, ())


def _missing(situation: Situation) -> str:
    """Return that the row was tried, for the note of a later failure."""
    row = row_of(situation.verdict.cause, situation.policy)
    if not row or not any(f.cause is situation.verdict.cause and f.ladder_step == NAME for f in situation.failures):
        return ""
    return f"your row [recover.{situation.verdict.cause}] was tried before: it acts once in a run"


@ladder_step(
    "once in a run: what your own row [recover.CAUSE] sets", tried="your own row", changes_job=True, consented=True, missing=_missing
)
def users_row(situation: Situation) -> Plan | None:
    """Set what the user's row of this cause names, if that differs from what the attempt ran with.

    The row has had its chance if an earlier failure of this cause was answered by it, and one of its knobs is still changed, or own_change
    took it back. The changes of a run are taken back too if the row is edited; then it acts again.
    """
    cause = situation.verdict.cause
    row, overrides = row_of(cause, situation.policy), dict(situation.overrides)
    answers = [number for number, failure in enumerate(situation.failures) if failure.cause is cause and failure.ladder_step == NAME]
    was_taken_back = bool(answers) and any(failure.ladder_step == OWN_CHANGE for failure in situation.failures[answers[-1] :])
    if answers and (was_taken_back or any(name in overrides for name, _ in row)):
        return None
    changes = tuple(change for name, value in row if (change := _change(situation, name, value)) is not None)
    if not changes:
        return None
    sets = ", ".join(_change_text(situation, change) for change in changes)
    return plans.restart(NAME, f"your row [recover.{cause}] sets {sets}", changes=changes, notes=_batch_notes(situation, changes))


def _change(situation: Situation, name: str, value: str) -> Change | None:
    """Return the change to a value of the row; None where the attempt ran with it already."""
    if name.startswith(ENV):
        variable = name.removeprefix(ENV)
        old, how = situation.variable(variable), variable
    else:
        knob = situation.enabled(name)
        old, how = (knob.value, knob.how) if knob is not None else ("", name)
    return None if old == value else Change(name, old, value, how)


def _change_text(situation: Situation, change: Change) -> str:
    """Return a change as the user's row has it."""
    knob = situation.enabled(change.knob)
    if knob is not None and knob.counts == ALONE:
        return change.knob
    return f"{change.knob.removeprefix(ENV).removesuffix('=')}={change.new}"


def _batch_notes(situation: Situation, changes: tuple[Change, ...]) -> tuple[str, ...]:
    """Return that the global batch is another one with the changes, as far as both are known."""
    size, accum = situation.enabled("batch_size"), situation.enabled("grad_accum")
    new = {change.knob: change.new for change in changes}
    if size is None or not new.keys() & {"batch_size", "grad_accum"}:
        return ()
    if accum is None:
        return () if "batch_size" not in new else (f"the global batch changes with {size.how}: no grad_accum is known that would keep it",)
    before = batch.read(size, accum, situation.replicas)
    size, accum = (replace(knob, value=new.get(knob.name, knob.value)) for knob in (size, accum))
    after = batch.read(size, accum, situation.replicas)
    return () if _product(before) == _product(after) else (f"the global batch changes from {before} to {after}, as your row says",)


def _product(of: batch.Batch | str) -> int | None:
    """Return the global batch, or that of one rank where the number of ranks is unknown; None: unknown."""
    if isinstance(of, str):
        return None
    return of.total if of.total is not None or of.accum is None else of.micro * of.accum
