"""From a failed rank to the last one: the ranks are stopped, the incident is opened, evidence is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.exits import was_asked
from supervisor.core import deadlines, stop
from supervisor.core.actions import CollectEvidence, EndLauncher, SetTimer
from supervisor.core.attempt import finish
from supervisor.core.model import Launcher, RankExit
from supervisor.core.nodes import sharing
from supervisor.core.state import Stage

if TYPE_CHECKING:
    from supervisor.core.events import LauncherExited, RankExited
    from supervisor.core.state import JobState, Step

#: How long a death by TERM waits for the supervisor's own TERM: schedulers signal all processes of a job, in any order.
OWN_SIGNAL_S = 1.0
#: In the list of deaths, the launcher itself: it ended before any rank did.
NO_RANK = -1


def stop_attempt(state: JobState, t: float, summary: str) -> Step:
    """End an attempt whose ranks run: only the supervisor saw why."""
    state, actions = tear_down(state, t, None, summary)
    return state, (deadlines.stop_ranks(state, "failure", summary), *actions)


def tear_down(state: JobState, t: float, death: RankExit | None, summary: str) -> Step:
    """End an attempt whose ranks are being stopped, or are gone: open (or continue with) the incident, collect what the observers know."""
    state, opening = finish.with_incident(state, t, summary, death.rank if death else None)
    awaited = death is not None and was_asked(death.code, death.signal)
    deaths = (*state.attempt.deaths, death) if death else state.attempt.deaths
    state = state.with_attempt(deaths=deaths, awaits_own_signal=awaited, evidence=None, over_t=t).entering(Stage.TEARDOWN)
    actions = (
        *sharing.end(state, "failure", summary),
        *opening,
        CollectEvidence(state.attempt.number, state.incidents, state.run.policy.evidence_deadline_s),
        deadlines.teardown_timer(state),
        SetTimer("evidence", state.token, state.run.policy.evidence_deadline_s + deadlines.EVIDENCE_MARGIN_S),
    )
    return state, (*actions, SetTimer("own_signal", state.token, OWN_SIGNAL_S)) if awaited else actions


def on_rank_exited(state: JobState, event: RankExited) -> Step:
    """End the attempt of a rank that failed. The deaths are kept in their order. torchrun's agent stops the other ranks by itself."""
    death = event.exit
    if state.stage is Stage.STOPPING and stop.ends_wait(state, death):
        return stop.take_failed_rank(state, event.t, death)
    if state.stage not in {Stage.STARTING, Stage.RUNNING} or not death.failed:
        return state.with_attempt(
            deaths=(*state.attempt.deaths, death)
        ), ()  # the others may continue: then it left too early (rank_endings.py)
    state, actions = tear_down(state, event.t, death, death.text)
    if state.run.policy.launcher is not Launcher.ELASTIC:
        actions = (deadlines.stop_ranks(state, "failure", death.text), *actions)
    return state, actions


def on_launcher_exited(state: JobState, event: LauncherExited) -> Step:
    """The agent or the guardian died: their ranks cannot be trusted to be watched, so the attempt ends with them."""
    if state.stage is Stage.STOPPING and event.process != "guardian":
        return state, ()
    how = f"killed by signal {event.signal}" if event.signal is not None else f"exit code {event.code}"
    if state.stage in {Stage.TEARDOWN, Stage.FOLLOWING, Stage.ADMITTING, Stage.STOPPING}:
        return state, (EndLauncher(state.attempt.number, f"the {event.process} ended: {how}"),)
    death = RankExit(NO_RANK, 0, 0, event.code, event.signal) if event.code is not None or event.signal is not None else None
    state, actions = tear_down(state, event.t, None, f"the {event.process} ended: {how}")
    state = state.with_attempt(deaths=(death,)) if death else state
    return state, (EndLauncher(state.attempt.number, f"the {event.process} ended"), *actions)  # nobody is left to stop the ranks kindly
