"""A fault that may be the program's or the GPU's: again on the same GPU it is the GPU's, over several GPUs it is the program's.

Only failures since the last progress are compared, and of an older one three on the same GPU and none elsewhere: two accidents in a month
prove nothing. A crash is a program's until much speaks against it: the same step twice is `same_place`'s, which stands before this rung,
and beyond that a rank must be known to use the GPU (an illegal access; the evidence names it; or there is one rank for each GPU), the steps
must differ, and there must have been another GPU on which it did not happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.budget import family
from supervisor.core.model import Cause, Plan, PlanKind
from supervisor.strategies.exclude_gpu import out_already, without

if TYPE_CHECKING:
    from supervisor.core.model import Failure
    from supervisor.strategies.situation import Situation

NAME = "same_gpu_twice"
OLDER = 2


def propose(situation: Situation) -> Plan | None:
    """Exclude the GPU that failed again, stop with 65 where the failure came back on another one."""
    if not situation.gpu or out_already(situation) or (_of_a_program(situation) and not _on_a_gpu(situation)):
        return None
    past = [f for f in situation.failures if f.cause is situation.verdict.cause and f.gpu]
    here = [f for f in past if f.gpu == situation.gpu]
    elsewhere = [f for f in past if f.gpu != situation.gpu and not f.passed_since and f.fingerprint == situation.verdict.fingerprint]
    if elsewhere:
        return Plan(
            kind=PlanKind.STOP,
            reason=f"the same failure on {len({f.gpu for f in elsewhere}) + 1} GPUs, with no progress in between: it is the program's",
            next_rung="remove the cause, then start again",
            strategy=NAME,
            exit_code=65,
        )
    again = [f for f in here if not f.passed_since and (not _of_a_program(situation) or _elsewhere(situation, f))]
    if _of_a_program(situation) and situation.ranks < 2:  # noqa: PLR2004 (another one, to tell them apart)
        return None
    if not again and (len(here) < OLDER or len(here) < len(past)):
        return None
    return without(situation, NAME)


def _of_a_program(situation: Situation) -> bool:
    return family(situation.verdict.cause) == "native"


def _on_a_gpu(situation: Situation) -> bool:
    one_for_each = situation.ranks == sum(not gpu.quarantined for gpu in situation.gpus)
    return situation.verdict.cause is Cause.CUDA_ILLEGAL_ACCESS or bool(situation.verdict.gpu) or one_for_each


def _elsewhere(situation: Situation, past: Failure) -> bool:
    """Whether both steps are known, and are not the same place."""
    if situation.before_first_step != past.before_first_step:
        return True
    if situation.step is None or past.step is None:
        return False
    return abs(situation.step - past.step) > situation.policy.same_place_steps
