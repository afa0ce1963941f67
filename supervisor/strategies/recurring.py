"""The same failure ten times in one run is no accident, progress between them or not: stop, unless --keep-going.

A failure that a change of the job answered is not counted: the next attempt was another one. A person is told at the third (the core does
that for every cause). What the infrastructure does counts here only while nothing is
gained: a link that flaps once a day for a month is a reason to have a supervisor, not to stop it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.budget import family
from supervisor.core.model import Plan, PlanKind

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

NAME = "recurring"


def propose(situation: Situation) -> Plan | None:
    """Stop at the `recurring_stop`-th equal failure: 65, or 75 where it is the infrastructure's."""
    policy = situation.policy
    if policy.keep_going:
        return None
    ours = family(situation.verdict.cause) != "infrastructure"
    equal = sum(1 for f in situation.failures if f.fingerprint == situation.verdict.fingerprint and not (f.progressed_since or f.changed))
    count = (situation.recurrences if ours else equal) + 1
    if count < policy.recurring_stop:
        return None
    return Plan(
        kind=PlanKind.STOP,
        reason=f"failed {count} times in the same way in this run" + ("" if ours else ", with no progress between them"),
        next_rung="remove the cause, or start with --keep-going",
        strategy=NAME,
        exit_code=65 if ours else 75,
    )
