"""A program that fails before its first training step fails again: no restart, its own exit code.

Only where "before the first step" is proven: an unknown phase says nothing (docs/design.md section 4). A typo in an import is told in
seconds and costs no restart, which is what a person at a terminal expects. Of what may pass by itself it is not said that it would be met
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Plan, PlanKind
from supervisor.strategies.situation import exit_code_of

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation


def propose(situation: Situation) -> Plan | None:
    """Stop with the rank's own code if no training step can have been made."""
    if not situation.before_first_step:
        return None
    passes = situation.verdict.transient
    return Plan(
        kind=PlanKind.STOP,
        reason="it failed before its first training step: "
        + ("nothing is restarted there, though another try may help" if passes else "a restart would meet the same"),
        next_rung=f"{'start again once it has passed' if passes else 'correct the program, then start again'}",
        strategy="own_code_before_first_step",
        exit_code=exit_code_of(situation.first),
    )
