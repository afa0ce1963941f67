"""Driver, CUDA, NCCL and devices that do not fit together: a restart meets the same, so say what does not fit and leave.

69 where it is this node's driver (another node may do), 78 where it is the set-up of the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Cause, Plan, PlanKind
from supervisor.strategies.consent import SURE

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

NAME = "environment_at_fault"


def propose(situation: Situation) -> Plan | None:
    """Stop if it is sure and the job cannot have started, or if a restart met the same already."""
    verdict = situation.verdict
    certain = situation.before_first_step and verdict.confidence >= SURE and not verdict.transient
    if not certain and not situation.unanswered:
        return None
    driver = verdict.cause is Cause.GPU_DRIVER
    return Plan(
        kind=PlanKind.STOP,
        reason=f"{'this node' if driver else 'the set-up'} does not fit: {verdict.summary}",
        next_rung="use another node, or correct its driver" if driver else "give each rank a GPU of its own, equal versions on all nodes",
        strategy=NAME,
        exit_code=69 if driver else 78,
    )
