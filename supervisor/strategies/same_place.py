"""The same failure at the same place twice without progress is deterministic: stop and say so (exit 65; 124 where it hangs).

*Same place*: same fingerprint, and absolute steps within `same_place_steps`, or both proven to be before the first step. Where a step
is unknown on either side nothing is proven and the budget decides instead. Evidence, not a counter: forty equal restarts in a night
are what this rule is for (NVIDIA/Megatron-LM #5281). What fails while a checkpoint is read failed at that checkpoint: with another one it
is another place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Cause, Plan, PlanKind

if TYPE_CHECKING:
    from supervisor.core.model import Failure
    from supervisor.strategies.situation import Situation

NAME = "same_place"
#: Causes whose last word is that nothing moves.
HANGS = frozenset({Cause.NCCL_TIMEOUT, Cause.HANG_NO_ERROR})


def propose(situation: Situation) -> Plan | None:
    """Stop with 65 if the run already failed like this, here, and nothing was gained since."""
    twin = next((f for f in reversed(situation.failures) if _same_place(situation, f)), None)
    if twin is None:
        return None
    where = "before the first step" if situation.before_first_step else f"at step {situation.step}"
    return Plan(
        kind=PlanKind.STOP,
        reason=f"attempt {twin.attempt} failed in the same way {_at(twin)}, and this one {where}, with no progress in between: "
        "it is deterministic",
        next_rung="remove the cause, then start again",
        strategy=NAME,
        exit_code=124 if situation.verdict.cause in HANGS else 65,
    )


def _at(past: Failure) -> str:
    return "before its first step" if past.before_first_step else f"at step {past.step}"


def _same_place(situation: Situation, past: Failure) -> bool:
    if past.passed_since or past.fingerprint != situation.verdict.fingerprint:
        return False
    if situation.before_first_step and past.before_first_step:
        return not _of_another_checkpoint(situation, past)
    if situation.step is None or past.step is None:
        return False
    return abs(situation.step - past.step) <= situation.policy.same_place_steps


def _of_another_checkpoint(situation: Situation, past: Failure) -> bool:
    """Whether both failed at what they were given, and were not given the same."""
    now = situation.resume.path if situation.resume else ""
    reads = (situation.loading or situation.verdict.cause is Cause.CHECKPOINT_CORRUPT) and (
        past.loading or past.cause is Cause.CHECKPOINT_CORRUPT
    )
    return reads and bool(now and past.resumed) and now != past.resumed
