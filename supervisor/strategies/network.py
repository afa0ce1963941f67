"""The rung for a collective that did not come back: the same attempt again, with NCCL's own log and torch's flight recorder on.

Neither can name the hanging rank afterwards unless it was on before. Both cost next to nothing and change nothing of the training, so this
is a restart like any other: charged, within the budget, without consent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from supervisor.core.model import Plan, PlanKind
from supervisor.strategies.repetition import restart_within_budget
from supervisor.strategies.rung import Rung

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation


def trace_collectives(situation: Situation) -> Plan | None:
    """Restart with both on, as long as the budget lasts; None if they are on already."""
    plan = restart_within_budget(situation)
    if situation.traced or plan.kind is PlanKind.STOP:
        return None
    reason = f"{plan.reason}, with NCCL's own log and torch's flight recorder on: they name what hangs next time"
    return replace(plan, strategy="trace_collectives", reason=reason, trace=True)


RUNGS = (Rung("trace_collectives", trace_collectives, "restart with NCCL's own log and torch's flight recorder on"),)
