"""This node gets worse, or well again, while the job runs. See core/decide.py for the rules.

It is reported once, and taken into account when the next attempt begins (node_health.py). Health alone ends no healthy attempt, unless
health.evict_on names the check. Then the attempt ends as if a rank had failed, and the finding is the cause. One from before its ranks
exist is kept until they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core import failure, lifecycle, node_health
from supervisor.core.actions import Alert, PrintMessage
from supervisor.core.node_health import WORSE
from supervisor.core.state import JobState, Stage
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.events import AttemptStarted, HealthChanged
    from supervisor.core.state import Step


def on_health_changed(state: JobState, event: HealthChanged) -> Step:
    """Report what is worse and what is well again; go on, unless health.evict_on names the check."""
    before = {reported_finding.about: reported_finding for reported_finding in state.run.reported_findings}
    after = dict(before)
    for finding in event.findings:
        if WORSE.get(finding.result, 0):
            after[finding.about] = finding
        else:
            after.pop(finding.about, None)
    worse = [
        finding
        for finding in event.findings
        if WORSE.get(finding.result, 0) > (WORSE[before[finding.about].result] if finding.about in before else 0)
    ]
    well = [before[finding.about] for finding in event.findings if finding.about in before and finding.about not in after]
    state = replace(state, run=replace(state.run, reported_findings=tuple(after.values())))
    actions: list[Action] = []
    if well:
        actions.append(PrintMessage("info", f"health: over: {node_health.summary(well)}"))
    reasons = tuple(finding for finding in worse if finding.check in state.run.policy.evict_on)
    evicts = bool(reasons) and state.stage is Stage.RUNNING
    waits = bool(reasons) and state.stage is Stage.STARTING
    if state.stage is Stage.STARTING:
        eviction = {finding.about: finding for finding in (*state.attempt.eviction, *reasons) if finding.about in after}
        state = replace(state, attempt=replace(state.attempt, eviction=tuple(eviction.values())))
    if worse:
        then = "the job goes on; it is acted on at the next restart"
        if evicts or waits:
            then = f"the attempt is ended{' once its ranks are there' * waits} (health.evict_on)"
        actions.append(Alert("node_health", state.attempt.number, f"health: {node_health.summary(worse)}; {then}"))
    if not evicts:
        return state, tuple(actions)
    state, more = _evict(replace(state, attempt=replace(state.attempt, eviction=reasons)), event.t)
    return state, (*actions, *more)


def on_attempt_started(state: JobState, event: AttemptStarted) -> Step:
    """The ranks exist; end them where this node became ill before."""
    state, actions = lifecycle.on_attempt_started(state, event)
    if not state.attempt.eviction:
        return state, actions
    state, more = _evict(state, event.t)
    return state, (*actions, *more)


def _evict(state: JobState, t: float) -> Step:
    return failure.stop_attempt(state, t, f"health: {node_health.summary(state.attempt.eviction)}")
