"""This node gets worse, or well again, while the job runs. See core/machine.py for the rules.

It is reported once, and taken into account when the next attempt begins (findings.py). Health alone ends no healthy attempt, unless
health.evict_on names the check. Then the attempt ends as if a rank had failed, and the finding is the cause. One from before its ranks
exist is kept until they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.actions import Alert, PrintMessage
from supervisor.core.attempt import start
from supervisor.core.health import findings
from supervisor.core.state import Stage
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.events import GpusListed, HealthChanged, HealthChecked
    from supervisor.core.state import JobState, Step


def on_health_changed(state: JobState, event: HealthChanged) -> Step:
    """Report worse findings and mended ones; continue, unless health.evict_on names the check."""
    before = {reported_finding.about: reported_finding for reported_finding in state.run.reported_findings}
    after = dict(before)
    for finding in event.findings:
        if findings.WORSE.get(finding.result, 0):
            after[finding.about] = finding
        else:
            after.pop(finding.about, None)
    worse = [
        finding
        for finding in event.findings
        if findings.WORSE.get(finding.result, 0) > (findings.WORSE[before[finding.about].result] if finding.about in before else 0)
    ]
    well = [before[finding.about] for finding in event.findings if finding.about in before and finding.about not in after]
    state = state.with_run(reported_findings=tuple(after.values()))
    actions: list[Action] = []
    if well:
        actions.append(PrintMessage("info", f"health: over: {findings.summary(well)}"))
    reasons = tuple(finding for finding in worse if finding.check in state.run.policy.evict_on)
    evicts = bool(reasons) and state.stage is Stage.RUNNING
    waits = bool(reasons) and state.stage is Stage.STARTING
    if state.stage is Stage.STARTING:
        eviction = {finding.about: finding for finding in (*state.attempt.eviction, *reasons) if finding.about in after}
        state = state.with_attempt(eviction=tuple(eviction.values()))
    if worse:
        then = "the job continues; the next restart acts on it"
        if evicts or waits:
            then = f"the attempt is ended{' once its ranks are there' * waits} (health.evict_on)"
        actions.append(Alert("node_health", state.attempt.number, f"health: {findings.summary(worse)}; {then}"))
    if not evicts:
        return state, tuple(actions)
    state, more = findings.evict(state.with_attempt(eviction=reasons), event.t)
    return state, (*actions, *more)


def on_health_checked(state: JobState, event: HealthChecked) -> Step:
    """Store this node's findings; begin if only they were awaited."""
    state = state.with_run(findings=event.findings, command_nproc=event.command_nproc or state.run.command_nproc)
    return start.begin_on_this_node(state, event.t, state.run.next_resume) if state.stage is Stage.CHECKING else (state, ())


def on_health_overdue(state: JobState, t: float) -> Step:
    """The examination of this node does not answer: that is not a reason to hold a job back."""
    text = f"this node could not be examined within {state.run.policy.health_deadline_s:.0f} s: the attempt begins without the examination"
    state, actions = start.begin(state, t, state.run.next_resume)
    return state, (PrintMessage("warning", text), *actions)


def on_gpus_listed(state: JobState, event: GpusListed) -> Step:
    """Store this node's GPUs with their ledger entries."""
    return replace(state, gpus=event.gpus), ()
