"""Another process holds the GPU's memory: the job is not too large, so nothing of it is changed; a person is told.

In a container nobody knows whose pids torch's list has (classify/gpumemory.py): what others hold is a stranger's then only where this node
has one rank alone, for ranks that all put something on the first GPU are the commoner case. What is left of our own is swept between
attempts by whoever can prove that it is ours (docs/design.md section 2); what is still there then is a stranger's, and is left alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from supervisor.core.model import Plan, PlanKind
from supervisor.strategies import restart_within_budget
from supervisor.strategies.situation import amount_told

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

NAME = "memory_held_by_others"
LEAST_SHARE = 0.1
LEAST_BYTES = 1 << 30


def propose(situation: Situation) -> Plan | None:
    """Restart as it is where a stranger holds a tenth of the GPU or 1 GiB; stop with 69 when the budget for that is spent."""
    held, capacity = situation.amount("other_bytes"), situation.amount("capacity")
    named = situation.fact("other_pids").split()
    strangers = [pid for pid in named if not pid.isdigit() or int(pid) not in situation.pids]
    if not held or (not strangers if named else situation.ranks != 1):
        return None
    if held < LEAST_BYTES and (not capacity or held < capacity * LEAST_SHARE):
        return None
    who = f"process{'es' * (len(strangers) > 1)} {', '.join(strangers)}" if strangers else "another process"
    several = len(strangers) > 1
    told = f"{who} {'hold' if several else 'holds'} {amount_told(held)} of the GPU and {'are' if several else 'is'} not of this job"
    plan = restart_within_budget.propose(situation)
    if plan.kind is PlanKind.STOP:
        return replace(plan, strategy=NAME, reason=f"{told}; {plan.reason}", next_rung=f"end {who}, or use another GPU", exit_code=69)
    return replace(
        plan,
        strategy=NAME,
        reason=f"{told}: the batch is not to blame, and stays",
        alert=f"{told}; end it, or give the job a GPU of its own",
        alert_kind="memory_held",
    )
