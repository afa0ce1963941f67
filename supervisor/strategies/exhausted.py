"""All that would make the next attempt differ is used up, or was never armed: stop and say what would have armed it (65).

A plain restart is left to a failure that came late for the first time: memory in pieces, one rare long batch, one cosmic ray. The same
cause again, or memory that does not suffice for the first step, is the job's own size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Cause, Plan, PlanKind
from supervisor.strategies import consent
from supervisor.strategies.situation import amount_told

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

NAME = "exhausted"


def propose(situation: Situation) -> Plan | None:
    """Stop with 65 if the cause is sure and came again without progress, or a GPU's memory does not suffice for the first steps."""
    if consent.withheld(situation):
        return None
    verdict, past = situation.verdict, situation.unanswered
    early = situation.before_first_step or (situation.step is not None and situation.resume is None and situation.step < 1)
    if not past and not (verdict.cause is Cause.CUDA_OOM and early):
        return None
    tried = ", ".join(dict.fromkeys(f.rung for f in past if f.rung)) or "nothing was armed"
    return Plan(
        kind=PlanKind.STOP,
        reason=f"{verdict.cause} again, and nothing is left that would make the next attempt differ (tried: {tried})"
        if past
        else "the memory does not suffice for the first step, and nothing that would need less of it is left or armed",
        next_rung="enable what `supervise plan -- CMD` names, or change the job, then start again",
        strategy=NAME,
        exit_code=65,
        told=_consumers(situation),
    )


def _consumers(situation: Situation) -> tuple[str, ...]:
    """Name the limit and who used it, as far as the evidence tells."""
    told = [
        f"{words} {situation.fact(name)}"
        for name, words in (("cgroup", "the limit is of cgroup"), ("victim", "killed:"))
        if situation.fact(name)
    ]
    told += [
        f"{words} {amount_told(n)}"
        for name, words in (("anon", "it held"), ("asked", "it asked for"), ("capacity", "the GPU has"))
        if (n := situation.amount(name))
    ]
    return ("; ".join(told),) if told else ()
