"""Restart, as long as the budget of this family of causes allows it; the end of every ladder.

The budget is OTP's: at most `intensity` charged failures in `period_s` seconds, per family of causes, and progress (a newly verified
checkpoint, an absolute step beyond the run's high-water mark) clears it: a job that gets on may fail every night for a month. What the
infrastructure does is not charged: it is waited for, until `recurring_stop` such failures in the period led nowhere. The
first restart is immediate; later ones back off with full jitter, because a hundred jobs that share a file server must not return
to it in the same second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.budget import backoff_s, family, recent, spent
from supervisor.core.model import Plan, PlanKind
from supervisor.strategies.situation import code_of_equals

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

NAME = "restart_within_budget"
_LAST = "stop, if it fails again without progress"


def propose(situation: Situation) -> Plan:
    """Restart within the budget, else stop with the code that says which kind of end this is."""
    policy, cause = situation.policy, situation.verdict.cause
    mine = family(cause)
    charged = spent(situation.failures, cause, situation.t, policy)
    count = len(recent(situation.failures, cause, situation.t, policy))
    if charged >= policy.intensity:
        return _stop(situation, f"failed {charged + 1} times within {policy.period_s:.0f} s without progress")
    if mine == "infrastructure" and count >= policy.recurring_stop:
        return _stop(situation, f"the infrastructure failed {count + 1} times within {policy.period_s:.0f} s without progress")
    left = policy.intensity - charged - 1
    return Plan(
        kind=PlanKind.RESTART,
        reason=_from(situation),
        next_rung=f"{left} more restart{'s' * (left != 1)} of this kind without progress, then stop" if left else _LAST,
        strategy=NAME,
        delay_s=backoff_s(count, situation.jitter, policy),
        charged=mine != "infrastructure",
    )


def _from(situation: Situation) -> str:
    """Say where the next attempt begins, as far as that is known before it is looked for."""
    policy = situation.policy
    if policy.checkpoints_declared:
        return "restart from the newest verified checkpoint, if any"  # the look for it comes next
    return "the same command again; " + ("the script resumes itself" if policy.resumes_itself else "no checkpoint is declared")


def _stop(situation: Situation, why: str) -> Plan:
    code, kind = code_of_equals(situation, situation.failures[-max(situation.policy.intensity - 1, 1) :])  # this one is the last of them
    return Plan(
        kind=PlanKind.STOP,
        reason=f"the budget is spent: {why}, {kind}",
        next_rung="look at the incidents, then start again",
        strategy=NAME,
        exit_code=code,
    )
