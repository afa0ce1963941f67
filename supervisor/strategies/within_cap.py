"""A run ends somewhere: torchrun's --max-restarts, where the user gave one, is a promise, and so is the number of attempts in a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Plan, PlanKind
from supervisor.strategies.situation import code_of_equals, exit_code_of

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

NAME = "within_cap"


def propose(situation: Situation) -> Plan | None:
    """Stop with the rank's own code once the user's cap is used up; with that of a spent budget after `max_attempts`."""
    policy, cap = situation.policy, situation.policy.max_restarts
    if cap is not None and situation.failed >= cap:
        return Plan(
            kind=PlanKind.STOP,
            reason=f"--max-restarts={cap} is used up",
            next_rung="raise --max-restarts, or leave it out to let the failure budget decide",
            strategy=NAME,
            exit_code=exit_code_of(situation.first),
        )
    if situation.attempts >= policy.max_attempts or not policy.intensity:
        code, why = code_of_equals(situation, situation.failures[-policy.recurring_alert :])
        spent = f"{policy.max_attempts} attempts in this run are all that restart.max_attempts allows"
        return Plan(
            kind=PlanKind.STOP,
            reason=(spent if policy.intensity else "restart.intensity = 0 allows no restart") + (f": {why}" if why else ""),
            next_rung="look at the incidents, then start again",
            strategy=NAME,
            exit_code=code,
        )
    return None
