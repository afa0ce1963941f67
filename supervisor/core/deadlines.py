"""How long answers are waited for. A process without an answer is ended from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.actions import SIGTERM, SetTimer, StopRanks

if TYPE_CHECKING:
    from supervisor.core.state import JobState

#: Beyond the deadline, for the observers' answer to arrive; without it the deaths are all the evidence there is.
EVIDENCE_MARGIN_S = 5.0
#: Beyond the grace, until TERM, KILL and the sweep are done and reported.
TEARDOWN_MARGIN_S = 3.0


def teardown_timer(state: JobState) -> SetTimer:
    """The timer after which ranks that were to be stopped are ended from outside."""
    return SetTimer("teardown", state.token, state.run.policy.stop.grace_s + TEARDOWN_MARGIN_S)


def stop_ranks(state: JobState, why: str, text: str = "") -> StopRanks:
    """The order to stop the ranks of an attempt that failed, or ends for nodes that join. `teardown_timer` awaits the answer."""
    return StopRanks(state.attempt.number, SIGTERM, state.run.policy.stop.grace_s, why, text)
