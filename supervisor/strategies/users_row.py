"""The rung of the user's own rows: [recover.CAUSE] of the settings says what to change after a failure of that cause.

It stands before the built-in rungs of its cause. A row is the user's consent, so it needs no sure verdict; but each knob in it must be
enabled. It acts once in a run. What another rung changes after it stays as that rung left it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Change, Plan, PlanKind
from supervisor.core.values import replace
from supervisor.knobs import batch
from supervisor.strategies.rung import Rung

if TYPE_CHECKING:
    from supervisor.core.model import Cause, Policy
    from supervisor.strategies.situation import Situation

NAME = "users_row"
ENV = "env:"


def row_of(cause: Cause, policy: Policy) -> tuple[tuple[str, str], ...]:
    """Return what the user's row sets for a cause, by knob or `env:NAME`; nothing where there is no row."""
    return dict(policy.recover).get(cause.value, ())


def users_row(situation: Situation) -> Plan | None:
    """Set what the user's row of this cause names, if that differs from what the attempt ran with.

    The row has had its chance if an earlier failure of this cause was answered by it and one of its knobs is still changed. The changes of
    a run are taken back if the row is edited; then it acts again.
    """
    cause = situation.verdict.cause
    row, overrides = row_of(cause, situation.policy), dict(situation.overrides)
    if any(f.cause is cause and f.rung == NAME for f in situation.failures) and any(name in overrides for name, _ in row):
        return None
    changes = tuple(change for name, value in row if (change := _change(situation, name, value)) is not None)
    if not changes:
        return None
    sets = ", ".join(f"{change.knob.removeprefix(ENV)}={change.new}" for change in changes)
    return Plan(
        kind=PlanKind.RESTART,
        reason=f"your row [recover.{cause}] sets {sets}",
        next_rung="",
        strategy=NAME,
        changes=changes,
        notes=_batch_notes(situation, changes),
    )


def _change(situation: Situation, name: str, value: str) -> Change | None:
    """Return the change to a value of the row; None where the attempt ran with it already."""
    if name.startswith(ENV):
        variable = name.removeprefix(ENV)
        old, how = situation.variable(variable), variable
    else:
        knob = situation.enabled(name)
        old, how = (knob.value, knob.how) if knob is not None else ("", name)
    return None if old == value else Change(name, old, value, how)


def _batch_notes(situation: Situation, changes: tuple[Change, ...]) -> tuple[str, ...]:
    """Return that the global batch is another one with the changes, as far as both are known."""
    size, accum = situation.enabled("batch_size"), situation.enabled("grad_accum")
    new = {change.knob: change.new for change in changes}
    if size is None or not new.keys() & {"batch_size", "grad_accum"}:
        return ()
    if accum is None:
        return () if "batch_size" not in new else (f"the global batch changes with {size.how}: no grad_accum is known that would keep it",)
    was = batch.read(size, accum, situation.replicas)
    size, accum = (replace(knob, value=new.get(knob.name, knob.value)) for knob in (size, accum))
    becomes = batch.read(size, accum, situation.replicas)
    return () if _product(was) == _product(becomes) else (f"the global batch changes from {was} to {becomes}, as your row says",)


def _product(of: batch.Batch | str) -> int | None:
    """Return the global batch, or that of one rank where the number of ranks is unknown; None: unknown."""
    if isinstance(of, str):
        return None
    return of.total if of.total is not None or of.accum is None else of.micro * of.accum


def _missing(situation: Situation) -> str:
    """Return that the row was tried, for the note of a later failure."""
    row = row_of(situation.verdict.cause, situation.policy)
    if not row or not any(f.cause is situation.verdict.cause and f.rung == NAME for f in situation.failures):
        return ""
    return f"your row [recover.{situation.verdict.cause}] was tried before: it acts once in a run"


RUNGS = (
    Rung(NAME, users_row, "once in a run: what your own row [recover.CAUSE] sets", changes_job=True, consented=True, missing=_missing),
)
