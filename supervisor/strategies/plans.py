"""The three forms of a plan that steps propose: a stop, a restart, and a restart after a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.core.model import Plan, PlanKind

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

#: The first wait; it doubles from the one to the other.
FIRST_WAIT_S = 30.0


def stop(strategy: str, exit_code: int, reason: str, todo: str, **columns: Any) -> Plan:  # noqa: ANN401  Plan checks them
    """Return a plan that ends the run. todo: what a person does before the next start. columns: others of Plan."""
    return Plan(PlanKind.STOP, reason, todo, strategy, exit_code, **columns)


def restart(strategy: str, reason: str, **columns: Any) -> Plan:  # noqa: ANN401  Plan checks them
    """Return a plan for another attempt. The walk finds the step for the same failure next time. columns: others of Plan."""
    return Plan(PlanKind.RESTART, reason, "", strategy, **columns)


def wait_s(situation: Situation, count: int, longest_s: float) -> float:
    """Return how long to wait after `count` waits: half of it fixed, half of it jitter, in seconds.

    So it is never at once, and not all jobs of a cluster begin again in the same second.
    """
    doubled_s = FIRST_WAIT_S * 2.0 ** min(count, 10)
    return min(doubled_s, longest_s) * (0.5 + 0.5 * situation.jitter)
