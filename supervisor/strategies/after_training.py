"""The action about a failure after the last step: it comes before every ladder, because no ladder has anything left to train.

Two causes are of nothing else (exit_stuck, exit_abort): their ladder is this one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.failure.rank_endings import EndKind, ended_text, is_held
from supervisor.core.model import FROM_OUTSIDE, Cause, Phase, Plan, PlanKind
from supervisor.core.values import replace
from supervisor.strategies import plans
from supervisor.strategies.guards import within_cap
from supervisor.strategies.ladder_step import ladder_step
from supervisor.strategies.repetition import restart_within_budget
from supervisor.strategies.situation import exit_code_of

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

#: `Plan.strategy` of its plans.
NAME = "training_over"


def training_over(situation: Situation) -> Plan | None:
    """Stop with the failed rank's own code (124 for a hang) if the training had ended: nothing is left that another attempt could train.

    Where it only seems so, one more attempt may end it, if it gets a checkpoint: what failed at the end was a barrier or the last save.
    A machine that is taken away, a person's Ctrl-C and a last save that failed are answered as at any other step.
    """
    ending = situation.ending
    if not ending.is_over or situation.failed_gpus:  # a GPU that failed goes out of use, whenever that was
        return None
    if CAUSE_TABLE[situation.verdict.cause].after_training:
        return stop_after_training(situation)
    if situation.verdict.cause in FROM_OUTSIDE or (ending.kind is EndKind.SEEMS_OVER and _lost_its_last_save(situation)):
        return None
    if ending.kind is EndKind.SEEMS_OVER and _gets_a_checkpoint(situation) and not situation.tried_since(NAME):
        plan = within_cap(situation) or restart_within_budget(situation)
        if plan.kind is PlanKind.RESTART:
            then = f"if the same error comes again, supervise stops (exit code {stop_after_training(situation).exit_code})"
            ended = ended_text(ending.step, situation.verified)
            return replace(
                plan, reason=f"{ended}, as it seems: one more attempt shows whether it ends now", next_ladder_step=then, strategy=NAME
            )
    return stop_after_training(situation)


@ladder_step(
    "stop: the training was over, and what failed or stood then trains nothing", name=NAME, tried="one more attempt after the last step"
)
def stop_after_training(situation: Situation) -> Plan:
    """Stop, with a true code: the failed rank's own, 124 where ranks made no progress, and 0 if rank 0 had left with 0 by then."""
    ending, cause = situation.ending, situation.verdict.cause
    row = CAUSE_TABLE[cause]
    code = row.exit_code if row.stands_still or cause is Cause.EXIT_STUCK else exit_code_of(situation.first)
    if cause is Cause.EXIT_STUCK and any(rank.rank == 0 and rank.left_well for rank in ending.ranks):
        code = 0
    return plans.stop(
        NAME,
        code,
        f"{ended_text(ending.step, situation.verified)}: another attempt would have nothing to train",
        "correct what the program does after its last step; the training itself needs no other start",
    )


def _lost_its_last_save(situation: Situation) -> bool:
    """Whether the last save failed, so that the training since the one before is to be repeated."""
    step = situation.ending.step
    if step is not None and is_held(step, situation.verified):
        return False
    return CAUSE_TABLE[situation.verdict.cause].of_saves or situation.phase is Phase.CHECKPOINT  # the one before may not be verified yet


def _gets_a_checkpoint(situation: Situation) -> bool:
    """Whether the next attempt is known not to begin from scratch."""
    policy = situation.policy
    return policy.resumes_itself or situation.resume is not None or (policy.checkpoints_declared and bool(situation.verified))
