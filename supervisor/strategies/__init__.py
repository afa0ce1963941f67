"""From a verdict to a plan: the walk up a ladder.

`propose` returns the plan of the first rung that has one; the last rung of every ladder always has one. The walk adds to that plan: notes
on the rungs that lacked a knob or consent, with the option that would enable them; that a change of the job is
not charged; and what the same failure would meet next time, found by walking the ladder again as if it had happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.causes import CAUSE_TABLE, GUARDS, LAST, SUSPECTS
from supervisor.core.model import Cause, Plan, PlanKind
from supervisor.core.values import replace
from supervisor.strategies import (
    after_training,
    checkpoint,
    collectives,
    consent,
    gpu,
    guards,
    memory,
    network,
    own_change,
    repetition,
    storage,
    users_row,
)
from supervisor.strategies.situation import changes, unworkable

if TYPE_CHECKING:
    from supervisor.core.model import Policy
    from supervisor.strategies.rung import Rung
    from supervisor.strategies.situation import Situation

__all__ = ["GUARDS", "LADDERS", "RUNGS", "SUSPECTS", "ladder", "propose", "summary"]

_FAMILIES = (guards, after_training, own_change, users_row, memory, checkpoint, gpu, collectives, network, storage, repetition)
#: Every built-in rung, by its name.
RUNGS: dict[str, Rung] = {rung.name: rung for family in _FAMILIES for rung in family.RUNGS}
#: The steps for each cause, of its row.
LADDERS: dict[Cause, tuple[str, ...]] = {cause: row.ladder for cause, row in CAUSE_TABLE.items()}


def summary(name: str) -> str:
    """Return one line on what a rung does."""
    return RUNGS[name].summary


def ladder(cause: Cause, policy: Policy) -> tuple[str, ...]:
    """Return the rungs for a cause. The rung of the user's row [recover.CAUSE], if any, stands behind the guards and own_change."""
    rungs = LADDERS[cause]
    if not users_row.row_of(cause, policy):
        return rungs
    place = max((at for at, name in enumerate(rungs, 1) if name in SUSPECTS), default=0)
    return (*rungs[:place], users_row.NAME, *rungs[place:])


def propose(situation: Situation) -> Plan:
    """Return the plan for a failure, complete with the next answer and notes on skipped rungs; after the last step there is no ladder."""
    over = after_training.training_over(situation)
    if over is not None:
        return over
    plan, notes = _walk(situation)
    if plan.kind is PlanKind.STOP:
        return replace(plan, notes=(*notes, *plan.notes))
    following, _ = _walk(situation.again(plan))
    counts_down = following.strategy == plan.strategy == LAST  # it already counts the restarts that remain
    return replace(plan, notes=(*plan.notes, *notes), next_rung=plan.next_rung if counts_down else _next_text(following))


def _walk(situation: Situation) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan of the first rung that has one, and notes on the rungs before it."""
    notes: list[str] = []
    cause = situation.verdict.cause
    objection = consent.objection(situation)
    for name in ladder(cause, situation.policy):
        rung = RUNGS[name]
        plan = rung.propose(situation)
        if plan is None:
            notes.append(rung.missing(situation))
            continue
        if not changes(plan):
            return plan, _distinct(notes)
        why = "" if rung.harmless else ("" if rung.consented else objection) or consent.unavailable(situation, plan)
        why = why or unworkable(situation, plan)
        if not why:
            return replace(plan, charged=False), _distinct(notes)
        notes.append(f"{name} is skipped: {why}")
    msg = f"the ladder of {cause} ends without a plan"
    raise AssertionError(msg)


def _distinct(notes: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in notes if text))


def _next_text(plan: Plan) -> str:
    """Return what the same failure would meet next time."""
    answer = f"stop with exit code {plan.exit_code}: " if plan.kind is PlanKind.STOP else "" if "restart" in plan.reason else "restart: "
    return f"if it fails so again: {answer}{plan.reason}"
