"""How a run ends, and the reports of an incident: opened, decided, closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.actions import CloseIncident, Finish, OpenIncident, ReportDecision
from supervisor.core.attempt import resumption
from supervisor.core.failure import losses, planning
from supervisor.core.nodes import sharing
from supervisor.core.state import Incident, Stage
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.model import FailureVerdict, JobDecision, Plan
    from supervisor.core.state import JobState, Step


def with_incident(
    state: JobState, t: float, summary: str, rank: int | None = None, decision: tuple[FailureVerdict, Plan] | None = None
) -> Step:
    """Open an incident on the current attempt. If one is open, it continues with this attempt."""
    opening: tuple[Action, ...] = ()
    incident = state.run.incident
    if incident is None:
        incident = Incident(state.incidents + 1, t, state.attempt.number)
        opening = (OpenIncident(incident.number, state.attempt.number, rank, summary),)
        state = state.with_run(losses=losses.with_incident(state.run.losses, t))
    verdict, plan = decision or (None, None)
    job_decision = None if verdict is None else _made_by_nodes(state, verdict)
    alerts = job_decision is None or planning.alerts_here(state, job_decision)
    incident = replace(incident, attempt=state.attempt.number, verdict=verdict, plan=plan, alerts=alerts)
    return replace(state.with_run(incident=incident), incidents=incident.number), opening


def stop_for(state: JobState, t: float, verdict: FailureVerdict, plan: Plan) -> Step:
    """Give the run up with an incident of its own, so that a card shows why."""
    state, actions = with_incident(state, t, verdict.summary, verdict.rank, (verdict, plan))
    state, more = give_up(state, verdict, plan)
    return state, (*actions, *more)


def give_up(state: JobState, verdict: FailureVerdict, plan: Plan) -> Step:
    """End the run with the plan's exit code and its card. Nodes that have met, and none of whose ranks was begun, end together."""
    if state.stage is Stage.STARTING and state.attempt.is_shared:
        return sharing.want_stop(state, verdict, plan)
    return leave(state, verdict, plan)


def leave(state: JobState, verdict: FailureVerdict, plan: Plan) -> Step:
    """End the run of this node, whatever the others do."""
    assert state.run.incident is not None  # noqa: S101 (callers opened one)
    report = decision_report(state, state.run.incident, verdict, plan)
    actions: tuple[Action, ...] = (
        report,
        CloseIncident(report.incident, report.attempt, "given_up", report.step),
        Finish(plan.exit_code, plan.reason, for_all=_made_by_nodes(state, verdict) is not None),
    )
    return replace(state.with_run(incident=None, exit_code=plan.exit_code).with_attempt(awaits_agreement=False), stage=Stage.ENDED), actions


def done(state: JobState) -> Step:
    """End the run well."""
    closing: tuple[Action, ...] = ()
    if state.attempt.number > 1 and state.attempt.began_as is None:  # no step was ever seen: it is over before that could be reported
        state, closing = resumption.reported(state, over=True)
    if state.run.incident is not None:
        withdrawn = bool(state.attempt.eviction) and state.run.incident.opened_t > state.attempt.began_t
        state, over = closed(state, state.run.incident, "withdrawn" if withdrawn else "resolved")
        closing += over
    return replace(state.with_run(incident=None, exit_code=0), stage=Stage.ENDED), (*closing, Finish(0, "done"))


def closed(state: JobState, incident: Incident, outcome: str) -> Step:
    """Close the incident of a run that ends. One that is withdrawn was not a failure, so it is not a loss."""
    if outcome == "withdrawn":
        state = state.with_run(losses=losses.withdrawn(state.run.losses, incident.opened_t))
    return state, (CloseIncident(incident.number, state.attempt.number, outcome, state.attempt.progress.step),)


def _made_by_nodes(state: JobState, verdict: FailureVerdict) -> JobDecision | None:
    """Return the decision of the nodes about the last attempt, if the verdict is theirs: this node may stop by itself after it."""
    job_decision = state.attempt.decision
    return job_decision if job_decision is not None and job_decision.verdict == verdict else None


def decision_report(state: JobState, incident: Incident, verdict: FailureVerdict, plan: Plan) -> ReportDecision:
    """Return the report of a decision. Where the nodes made it, its step is the one of the node that failed, and one of them alerts."""
    decision = _made_by_nodes(state, verdict)
    step = state.attempt.progress.step if decision is None else decision.step
    return ReportDecision(incident.number, state.attempt.number, verdict, plan, step, alerts=incident.alerts)
