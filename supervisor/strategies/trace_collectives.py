"""A collective that did not come back: the same again, with NCCL's own log and torch's flight recorder on.

What hung, and on which rank, is told by neither of them afterwards unless it was asked for before. Both cost next to nothing and change
nothing of the training, so this is a restart like any other: charged, within the budget, and in need of nobody's leave.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from supervisor.core.model import Plan, PlanKind
from supervisor.strategies import restart_within_budget

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

NAME = "trace_collectives"


def propose(situation: Situation) -> Plan | None:
    """Restart with both on, as long as the budget lasts; where they are on already there is nothing to add."""
    plan = restart_within_budget.propose(situation)
    if situation.traced or plan.kind is PlanKind.STOP:
        return None
    reason = f"{plan.reason}, with NCCL's own log and torch's flight recorder on: what hangs next time is told by them"
    return replace(plan, strategy=NAME, reason=reason, trace=True)
