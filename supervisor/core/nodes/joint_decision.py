"""One decision for all nodes of an attempt (docs/explanation/many-nodes.md): the evidence of each, the judge, and the action on all.

    the attempt ends on a node ─> EndForAll ─> AttemptEndedByPeer on the others, which stop their ranks
    its ranks are gone, its evidence is there ─> ReportAttempt
    all have reported ─> ReportsGathered at the coordinator ─> ProposeDecision ─> DecisionMade on every node

An attempt is shared from the moment at which its nodes have met (Attempt.members) until the decision about it. A failure before that is
this node's alone: no rank of the others runs yet, so this node judges by itself, and meets them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify import remedies
from supervisor.classify.engine import classify
from supervisor.classify.exits import ENDED_BY_US
from supervisor.core import deadlines
from supervisor.core.actions import SIGTERM, CompleteAttempt, PrintMessage, ProposeDecision, StopRanks
from supervisor.core.attempt import finish, known_checkpoints, start
from supervisor.core.failure import judgement, rank_endings, teardown
from supervisor.core.model import Cause, Claim, Evidence, FailureVerdict, Plan, PlanKind
from supervisor.core.nodes import admission, sharing
from supervisor.core.state import Stage
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.events import AttemptEndedByPeer, CoordinatorFellSilent, DecisionMade, LeftBehind, NodeCutOff, ReportsGathered
    from supervisor.core.model import JobDecision
    from supervisor.core.state import Attempt, JobState, NodeReport, Run, Step

#: Kinds of an end (supervisor/cluster/model.py has all), of a decision, and its stand-in.
VOID, LEFT = "void", "left"
RESTART, STOP, SUCCESS, LEFT_BEHIND = "restart", "stop", "success", "left_behind"
#: Ends of an attempt in which nothing failed.
_WITHOUT_FAILURE = frozenset({admission.MEMBERSHIP, VOID})
#: Stages of a node whose attempt has ended, and that continues with the job.
_REPORTED = frozenset({Stage.TEARDOWN, Stage.FOLLOWING, Stage.ADMITTING})
#: Causes that other nodes' ranks show when a node goes: they lose their connections, or wait for it.
_OF_A_LOSS = frozenset(
    {
        Cause.GLOO_ERROR,
        Cause.NCCL_NETWORK,
        Cause.NCCL_TIMEOUT,
        Cause.HANG_NO_ERROR,
        Cause.RENDEZVOUS,
        Cause.NODE_LOST,
        Cause.KILLED_UNKNOWN,
        Cause.PREEMPTED,
        Cause.UNKNOWN,
        Cause.NONE,
    }
)


# the end


def on_attempt_ended_by_peer(state: JobState, event: AttemptEndedByPeer) -> Step:
    """End it here too. The state of this node's ranks belongs to the evidence."""
    attempt = state.attempt
    node = sharing.node_name(event.node, attempt.members)
    ended = state.with_attempt(ended_by=node, ended_as=event.kind)
    if state.stage is Stage.TEARDOWN:  # it ended here by itself too, a moment later
        return state.with_attempt(ended_as=event.kind), ()
    if _is_without_failure(attempt, event.kind):
        text = f"node {node} lets waiting nodes join" if event.kind == admission.MEMBERSHIP else event.text
        message = PrintMessage("info", f"{text}: attempt {attempt.number} is stopped, and the next one begins with a meeting of the nodes")
        return admission.admit(ended, message)
    ended, actions = teardown.tear_down(ended, event.t, None, f"node {node}: {event.text}")
    stop = StopRanks(attempt.number, SIGTERM, state.run.policy.stop.grace_s, "failure", event.text)
    return ended, (stop, *actions)


def _is_without_failure(attempt: Attempt, kind: str) -> bool:
    """Whether nothing failed in an attempt that ended so: a node that leaves for the node check uses up no restart of the others."""
    return kind in _WITHOUT_FAILURE or (kind == LEFT and attempt.peers_failed_node_check)


def on_coordinator_fell_silent(state: JobState, event: CoordinatorFellSilent) -> Step:
    """End an attempt that the others may have ended without this node."""
    if not state.attempt.is_shared:
        return state, ()
    fact = Evidence("network", "coordinator_silent", event.text, t=event.t, claim=Claim(Cause.RENDEZVOUS, 0.9, transient=True))
    return teardown.stop_attempt(state.with_attempt(ended_for=(fact,)), event.t, event.text)


# the decision


def on_reports_gathered(state: JobState, event: ReportsGathered) -> Step:
    """Decide for all nodes by the evidence of all. Nothing changes here: this node acts when the decision comes back (DecisionMade)."""
    if not event.reports and not event.missing:  # an attempt without nodes has never begun
        return state, ()
    view = _view(state, event)
    if _is_without_failure(view.attempt, event.kind):
        return state, (ProposeDecision(event.attempt, VOID if event.kind == VOID else RESTART),)
    decision = replace(decided(view, event), by=view.attempt.me)
    return state, (ProposeDecision(event.attempt, decision.plan.kind.value, decision),)


def _view(state: JobState, event: ReportsGathered) -> JobState:
    """Return the state by which the coordinator judges: its own where it takes part in the attempt, else the first report's.

    The node of that state alerts to the decision: a coordinator that is stopping, or takes no part, has no incident of it.
    """
    attempt = state.attempt
    takes_part = attempt.number == event.attempt and attempt.is_shared and state.stage in _REPORTED
    if takes_part or not event.reports:
        return state
    report = event.reports[0]
    return replace(state, run=report.run, attempt=report.attempt, gpus=report.gpus)


def decided(state: JobState, event: ReportsGathered) -> JobDecision:
    """Return the decision: a stop that a node wants, the loss of a node, or the verdict on the evidence of all nodes."""
    stop_decision = next((report.attempt.stop_wanted for report in event.reports if report.attempt.stop_wanted is not None), None)
    if stop_decision is not None:
        return stop_decision
    members = state.attempt.members
    saved = max((report.attempt.saved_steps.highest or 0 for report in event.reports), default=0)  # one node alone may have seen it
    state = replace(state, attempt=_with_saved(state.attempt, saved))
    facts = tuple(
        fact for report in event.reports for fact in judgement.facts_of(report.attempt, event.t, sharing.node_name(report.node, members))
    )
    on_all_nodes = state.with_attempt(evidence=facts)
    verdict = rank_endings.explained(on_all_nodes, classify(facts), rank_endings.of(on_all_nodes))
    gone_node = _gone_node(event, members)
    is_loss = gone_node is not None and verdict.cause in _OF_A_LOSS
    if gone_node is not None and is_loss:
        verdict = _loss_verdict(*gone_node, verdict, event.t)
    culprit = _culprit(event, verdict, members)
    verdict = verdict if verdict.node or culprit is None else replace(verdict, node=sharing.node_name(culprit.node, members))
    view = state if culprit is None else replace(state, gpus=culprit.gpus, attempt=culprit.attempt)
    run = known_checkpoints.with_saved(view.run, saved, event.attempt)
    gpus = tuple(gpu for report in event.reports for gpu in report.attempt.gpus_now or report.gpus)
    view = replace(view, run=run, attempt=replace(_with_saved(view.attempt, saved), members=members, evidence=facts, gpus_now=gpus))
    decision = judgement.judged(view, event.t, verdict)
    nodes_left = len(members) - len({node for node, _ in event.missing})  # a node whose supervise came back is not gone
    return replace(decision, plan=_waiting(decision.plan, state.run, nodes_left, remedies.remedy(verdict))) if is_loss else decision


def _with_saved(attempt: Attempt, step: int) -> Attempt:
    """Return the attempt with a verified checkpoint of this step; 0: none."""
    return replace(attempt, saved_steps=attempt.saved_steps.including(step)) if step else attempt


def _waiting(plan: Plan, run: Run, nodes_left: int, todo: str) -> Plan:
    """Return the plan after the loss of a node, which names the missing nodes if too few are left."""
    least = sharing.needed_nodes(run)
    if plan.kind is not PlanKind.RESTART or nodes_left >= least:
        return plan
    count = least - nodes_left
    comes = "does" if count == 1 else "do"
    lack = f"{count} more node{'s' * (count > 1)}"
    shortage = f"{nodes_left} of the {least} that the job needs {'is' if nodes_left == 1 else 'are'} left"
    return replace(
        plan,
        reason=f"waits for {lack}: {shortage}",
        next_ladder_step=f"if {lack} {comes} not come in time (torch's join_timeout), supervise stops (exit code 75)",
        todo=todo,
    )


def _gone_node(event: ReportsGathered, members: tuple[str, ...]) -> tuple[str, str] | None:
    """Return a node that went, and how: the one that ended the attempt, if several did."""
    died = ((r.node, f.text) for r in event.reports for f in r.attempt.evidence or () if f.name == sharing.SUPERVISE_DIED)
    rows = [*event.missing, *died]
    first = next((row for row in rows if row[0] == event.node), rows[0] if rows else None)
    return None if first is None else (sharing.node_name(first[0], members), first[1])


def _loss_verdict(node: str, how: str, verdict: FailureVerdict, t: float) -> FailureVerdict:
    """Return the verdict on a node that went. Its own evidence is lost with it, or was none."""
    has_left = how.startswith("left: ")
    how = how.removeprefix("left: ").removeprefix("lost: ")
    if how.startswith("no report"):  # it lives, as far as is known
        summary = f"node {node}: {how}"
    else:
        summary = f"node {node} left: {how}" if has_left else f"node {node} is lost: {how}"
    fact = Evidence("launcher", "node_lost", summary, node=node, t=t)
    return FailureVerdict(
        Cause.NODE_LOST,
        0.95,
        summary,
        "node:left" if has_left else "node:lost",
        transient=True,
        because=(fact, *(row for row in verdict.because if row.name != ENDED_BY_US))[:10],
        node=node,
        runner_up=verdict.cause if verdict.cause not in {Cause.UNKNOWN, Cause.NONE} else None,
        runner_up_confidence=verdict.confidence,
    )


def _culprit(event: ReportsGathered, verdict: FailureVerdict, members: tuple[str, ...]) -> NodeReport | None:
    """Return the report of the failed node, as far as it is known: the culprit's, the named node's, or the one that ended the attempt."""
    for fits in (
        lambda r: verdict.rank is not None and any(rank.rank == verdict.rank for rank in r.attempt.ranks),
        lambda r: bool(verdict.node) and sharing.node_name(r.node, members) == verdict.node,
        lambda r: r.node == event.node,
    ):
        for report in event.reports:
            if fits(report):
                return report
    return event.reports[0] if event.reports else None


def on_decision_made(state: JobState, event: DecisionMade) -> Step:
    """Act on it once no rank is left here. Every node counts the same."""
    if event.elsewhere:
        return _ended_elsewhere(state, event)
    if not state.attempt.is_shared or state.stage is Stage.STOPPING:
        return state, ()
    if event.kind == SUCCESS and state.stage in {Stage.STARTING, Stage.RUNNING}:
        state = state.with_attempt(decided=SUCCESS)
        return state, (CompleteAttempt(state.attempt.number),)
    runs = state.stage in {Stage.STARTING, Stage.RUNNING}
    state = state.with_attempt(decided=event.kind, decision=event.decision, awaits_agreement=False)
    return _stopped_for(state, event.t, "the other nodes ended the attempt") if runs else follow_if_ready(state, event.t)


def on_left_behind(state: JobState, event: LeftBehind) -> Step:
    """Meet the others again: they hand over their agreements of the meantime."""
    if not state.attempt.is_shared or state.stage is Stage.STOPPING:
        return state, ()
    runs = state.stage in {Stage.STARTING, Stage.RUNNING}
    state = state.with_attempt(decided=LEFT_BEHIND, awaits_agreement=False)
    text = "this node was cut off while the others continued; it rejoins at the next restart"
    state, actions = _stopped_for(state, event.t, text) if runs else follow_if_ready(state, event.t)
    return state, (PrintMessage("warning", text), *actions)


def _stopped_for(state: JobState, t: float, text: str) -> Step:
    """Stop ranks of an attempt that has its decision already."""
    state = state.with_attempt(over_t=t).entering(Stage.FOLLOWING)
    stop = deadlines.stop_ranks(state, "failure", text)
    return state, (stop, deadlines.teardown_timer(state))


def follow_if_ready(state: JobState, t: float) -> Step:
    """Act on the decision once it is known and no rank is left on this node."""
    attempt = state.attempt
    if not attempt.ended or not attempt.decided:
        return state, ()
    if attempt.decided == SUCCESS:
        return finish.done(state)
    if attempt.decision is not None:
        return judgement.act_on(state, t, attempt.decision)
    if attempt.decided in {VOID, RESTART}:
        return start.select(state.with_run(reason="membership"), t)
    return start.select(state.with_run(reason="failure"), t)


def _ended_elsewhere(state: JobState, event: DecisionMade) -> Step:
    """End as the job did, in whose last attempt this node took no part."""
    if not state.waits_to_meet:
        return state, ()
    if event.kind == SUCCESS or event.decision is None:
        return finish.done(state)
    decision = event.decision
    state = state.with_attempt(decision=decision)
    state, opening = finish.with_incident(
        state, event.t, decision.verdict.summary, decision.verdict.rank, (decision.verdict, decision.plan)
    )
    state, actions = finish.give_up(state.with_attempt(awaits_agreement=False), decision.verdict, decision.plan)
    return state, (*opening, *actions)


def on_decision_overdue(state: JobState, t: float) -> Step:
    """No decision comes: the coordinator is gone."""
    if state.attempt.decided:
        return state, ()
    return _without_coordinator(
        state, t, f"no decision came from the coordinator within {state.run.policy.node_rules.wait_s:g} s (nodes.wait_s)"
    )


def on_node_cut_off(state: JobState, event: NodeCutOff) -> Step:
    """Stop this node, of which no rank runs: with 78 where the coordinator refuses it, else with 75."""
    if state.attempt.decided:
        return state, ()
    if not event.is_refused:
        return _without_coordinator(state, event.t, event.text)
    verdict = FailureVerdict(Cause.DEPENDENCY, 0.95, f"the coordinator of the nodes refuses this node: {event.text}"[:600], "nodes:refused")
    hint = event.text.rpartition(": ")[2]  # `what happened: what to do` (cluster/wire.py)
    return _leave_alone(state, event.t, verdict, Plan(PlanKind.STOP, "this node cannot take part in the job", hint[:600], "beginning", 78))


def _without_coordinator(state: JobState, t: float, text: str) -> Step:
    """Stop with 75, and name the command and its first node if no scheduler restarts it."""
    host = sharing.node_name(state.attempt.coordinator, state.attempt.members)
    first = f"node {host} or the node that replaces it" if host else "the node that serves the rendezvous"
    again = f"start the same command again on every node, beginning with {first}; the job resumes from its newest checkpoint"
    hint = "the scheduler's requeue continues this run" if state.run.policy.is_scheduled else again
    verdict = FailureVerdict(
        Cause.RENDEZVOUS, 0.7, f"{text}{f'; it was on node {host}' if host else ''}", "coordinator:gone", transient=True
    )
    return _leave_alone(state, t, verdict, Plan(PlanKind.STOP, "without a coordinator the nodes would diverge", hint, "coordinator", 75))


def _leave_alone(state: JobState, t: float, verdict: FailureVerdict, plan: Plan) -> Step:
    """End this node alone, whose ranks are gone."""
    opening: tuple[Action, ...] = ()
    if state.run.incident is None:
        state, opening = finish.with_incident(state, t, verdict.summary)
    state, actions = finish.leave(state, verdict, plan)
    return state, (*opening, *actions)
