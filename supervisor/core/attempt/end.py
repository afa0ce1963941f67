"""No rank is left: what that means in each stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.engine import classify
from supervisor.core import stop
from supervisor.core.actions import PrintMessage
from supervisor.core.attempt import finish, start
from supervisor.core.failure import judgement, teardown
from supervisor.core.model import Plan, PlanKind
from supervisor.core.nodes import joint_decision, sharing
from supervisor.core.state import Stage

if TYPE_CHECKING:
    from supervisor.core.events import AttemptEnded
    from supervisor.core.state import JobState, Step

#: Why a rank's failure is not answered, and how a person makes the command pass it on.
HIDDEN = "the command left with 0 all the same: nothing is started again"
UNHIDE = "have the command pass the failure on: `set -eo pipefail` in a shell script, no `|| true`, a wrapper that returns the rank's code"


def on_attempt_ended(state: JobState, event: AttemptEnded) -> Step:
    """No rank is left on this node. The nodes' decision about the attempt takes effect now."""
    over_t = event.t if state.attempt.over_t is None else state.attempt.over_t
    state = state.with_attempt(ended=True, over_t=over_t)
    if state.stage is Stage.STOPPING:
        return stop.finish_stopped(state, event.outcome)
    if state.attempt.decided and state.stage in {Stage.TEARDOWN, Stage.FOLLOWING, Stage.ADMITTING}:
        return joint_decision.follow_if_ready(state, event.t)
    if state.stage in {Stage.TEARDOWN, Stage.ADMITTING}:
        return _torn_down(state, event)
    if state.stage not in {Stage.STARTING, Stage.RUNNING}:
        return state, ()  # a second report
    if event.outcome == "succeeded":
        return _hidden(state, event) if event.hidden else finish.done(state)
    return teardown.tear_down(state, event.t, None, "the attempt ended without a reason")


def _torn_down(state: JobState, event: AttemptEnded) -> Step:
    """Judge the failure, or meet anew with the nodes that asked to join."""
    if state.stage is Stage.ADMITTING:
        if state.attempt.is_shared:
            return sharing.report(state.with_attempt(evidence=()))
        return start.select(state.with_run(reason="membership"), event.t)
    # one that was to be ended for its node's health may have come to its own end first; who leaves with 0 at our stop has not
    well = not state.attempt.ended_for and event.outcome == "succeeded" and not any(death.failed for death in state.attempt.deaths)
    return finish.done(state) if well else judgement.judge_if_ready(state, event.t)


def _hidden(state: JobState, event: AttemptEnded) -> Step:
    """End the run with the command's 0, and report the rank that failed: the command hid it (EndKind.HIDDEN)."""
    verdict = classify(event.hidden)
    state = state.with_attempt(evidence=event.hidden).with_run(hidden=verdict.summary)
    plan = Plan(PlanKind.STOP, HIDDEN, UNHIDE, "hidden", 0)
    message = PrintMessage("warning", f"the command left with 0, but {verdict.summary}, and nothing trained after that")
    state, opening = finish.with_incident(state, event.t, verdict.summary, verdict.rank, (verdict, plan))
    state, actions = finish.give_up(state, verdict, plan)
    return state, (*opening, message, *actions)
