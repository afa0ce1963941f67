"""From a verdict to a plan: the walk up a ladder.

`propose` returns the plan of the first step that has one; the last step of every ladder always has one. The walk adds to that plan: notes
on the steps that lacked a knob or consent, with the option that would enable them; that a change of the job is
not charged; and what the same failure would meet next time, found by walking the ladder again as if it had happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.causes import CAUSE_TABLE, GUARDS, LAST, OWN_CAUSE, SUSPECTS
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
from supervisor.strategies.ladder_step import LADDER_STEPS
from supervisor.strategies.situation import changes, unworkable

if TYPE_CHECKING:
    from supervisor.core.model import Policy
    from supervisor.strategies.situation import Situation

__all__ = ["GUARDS", "LADDERS", "LADDER_STEPS", "SUSPECTS", "is_explained", "ladder", "propose", "summary"]

#: Each registers its steps as it is imported.
_MODULES = (guards, after_training, own_change, users_row, memory, checkpoint, gpu, collectives, network, storage, repetition)
#: The names of the steps for each cause, of its row.
LADDERS: dict[Cause, tuple[str, ...]] = {cause: row.ladder for cause, row in CAUSE_TABLE.items()}


def summary(name: str) -> str:
    """Return one line on what a step does."""
    return LADDER_STEPS[name].summary


def is_explained(name: str) -> bool:
    """Whether the reason of a plan is at the terminal too; name: of Plan.strategy, which is not a step where no failure was judged."""
    return name in LADDER_STEPS and LADDER_STEPS[name].explained


def ladder(cause: Cause, policy: Policy) -> tuple[str, ...]:
    """Return the steps for a cause. The step of the user's row [recover.CAUSE], if any, is behind the guards and own_change."""
    names = LADDERS.get(cause, OWN_CAUSE.ladder)
    if not users_row.row_of(cause, policy):
        return names
    place = max((at for at, name in enumerate(names, 1) if name in SUSPECTS), default=0)
    return (*names[:place], users_row.NAME, *names[place:])


def propose(situation: Situation) -> Plan:
    """Return the plan for a failure, complete with the next answer and notes on skipped steps; after the last step there is no ladder."""
    over = after_training.training_over(situation)
    if over is not None:
        return over
    plan, notes = _walk(situation)
    if plan.kind is PlanKind.STOP:  # what a start with its options enables, no note names
        return replace(plan, notes=plan.notes if plan.options else (*notes, *plan.notes))
    following, _ = _walk(situation.again(plan))
    counts_down = following.strategy == plan.strategy == LAST  # it already counts the restarts that remain
    at = f" at step {situation.step}" if following.strategy == "same_place" and situation.step is not None else ""
    next_step = plan.next_ladder_step if counts_down else _next_text(following, at)
    return replace(plan, notes=(*plan.notes, *notes), next_ladder_step=next_step)


def _walk(situation: Situation) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan of the first step that has one, and notes on the steps before it."""
    notes: list[str] = []
    cause = situation.verdict.cause
    objection = consent.objection(situation)
    for name in ladder(cause, situation.policy):
        step = LADDER_STEPS[name]
        plan = step.propose(situation)
        if plan is None:
            notes.append(step.missing(situation))
            continue
        if not changes(plan):
            return plan, _distinct(notes)
        why = "" if step.harmless else ("" if step.consented else objection) or consent.unavailable(situation, plan)
        why = why or unworkable(situation, plan)
        if not why:
            return replace(plan, charged=False), _distinct(notes)
        notes.append(f"{name} is skipped: {why}")
    msg = f"the ladder of {cause} ends without a plan"
    raise AssertionError(msg)


def _distinct(notes: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in notes if text))


def _next_text(plan: Plan, at: str) -> str:
    """Return what the same failure would meet next time."""
    if plan.kind is PlanKind.STOP:
        return f"if the same error comes again{at}, supervise stops (exit code {plan.exit_code})"
    if plan.changes:
        changed = ", ".join(f"{change.how} {change.new}" for change in plan.changes)
        return f"if the same error comes again, the next attempt runs with {changed}"
    if plan.waits:
        return f"if the same error comes again, supervise {plan.reason}"
    return f"if the same error comes again, supervise restarts it{' ' if plan.reason.startswith('from ') else ': '}{plan.reason}"
