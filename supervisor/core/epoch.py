"""One decision for all nodes of an attempt (docs/explanation/many-nodes.md): what each of them saw, who judges it, and how all act on it.

    the attempt ends on a node ─> EndForAll ─> AttemptEndedByPeer on the others, which stop their ranks
    its ranks are gone, its evidence is there ─> ReportEpoch
    all have reported ─> ReportsGathered at the coordinator ─> ProposeDecision ─> DecisionMade on every node

An attempt is shared from the moment at which its nodes have met (Attempt.members) until the decision about it. A failure before that is
one of this node alone: nothing of the others' runs, so it judges by itself, and meets them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.engine import classify
from supervisor.classify.exits import ENDED_BY_US
from supervisor.core import ending, failure, lifecycle, planning, replicas, sharing, start
from supervisor.core.actions import (
    SIGTERM,
    CompleteAttempt,
    PrintMessage,
    ProposeDecision,
    ReportSaved,
    RequestSave,
    StopRanks,
)
from supervisor.core.model import Cause, Claim, Evidence, JobDecision, Plan, PlanKind, Verdict
from supervisor.core.state import Admission, Attempt, JobState, NodeReport, Stage
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.events import (
        AttemptEnded,
        AttemptEndedByPeer,
        CheckpointVerified,
        CoordinatorFellSilent,
        DecisionMade,
        LeftBehind,
        NodeCutOff,
        NodesWaiting,
        ReportsGathered,
    )
    from supervisor.core.state import Run, Step

#: Kinds of an end (supervisor/cluster/model.py has all), of a decision, and what stands in for one.
MEMBERSHIP, VOID, LEFT = "membership", "void", "left"
RESTART, STOP, SUCCESS, LEFT_BEHIND = "restart", "stop", "success", "left_behind"
#: Ends of an attempt in which nothing failed.
_WITHOUT_FAILURE = frozenset({MEMBERSHIP, VOID})
#: Stages of a node whose attempt has ended, and that goes on with the job.
_REPORTED = frozenset({Stage.TEARDOWN, Stage.FOLLOWING, Stage.ADMITTING})
#: What the ranks of the others show when a node goes: they lose their connections, or wait for it.
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
    """End it here too. What this node's ranks show belongs to the evidence."""
    attempt = state.attempt
    node = sharing.shown(event.node, attempt.members)
    ended = replace(state, attempt=replace(attempt, ended_by=node, ended_as=event.kind))
    if state.stage is Stage.TEARDOWN:  # it had ended here by itself, a moment later
        return replace(state, attempt=replace(attempt, ended_as=event.kind)), ()
    if _is_without_failure(attempt, event.kind):
        text = f"node {node} lets waiting nodes join" if event.kind == MEMBERSHIP else event.text
        message = PrintMessage("info", f"{text}: attempt {attempt.number} is stopped, and the next one begins with a meeting of the nodes")
        return admit(ended, message)
    ended, actions = failure.tear_down(ended, event.t, None, f"node {node}: {event.text}")
    stop = StopRanks(attempt.number, SIGTERM, state.run.policy.stop.grace_s, "failure", event.text)
    return ended, (stop, *actions)


def _is_without_failure(attempt: Attempt, kind: str) -> bool:
    """Whether nothing failed in an attempt that ended so: a node that leaves for the node check uses up no restart of the others."""
    return kind in _WITHOUT_FAILURE or (kind == LEFT and attempt.peers_failed_node_check)


def admit(state: JobState, message: PrintMessage) -> Step:
    """Stop ranks that did not fail, so that the nodes meet again."""
    stop = StopRanks(state.attempt.number, SIGTERM, state.run.policy.stop.grace_s, "membership")
    state = replace(state, stage=Stage.ADMITTING, token=state.token + 1)
    return state, (message, stop, sharing.teardown_timer(state, state.token))


def on_coordinator_silent(state: JobState, event: CoordinatorFellSilent) -> Step:
    """End an attempt that the others may have ended without this node."""
    if not state.attempt.is_shared:
        return state, ()
    fact = Evidence("network", "coordinator_silent", event.text, t=event.t, claim=Claim(Cause.RENDEZVOUS, 0.9, transient=True))
    return failure.stop_attempt(replace(state, attempt=replace(state.attempt, ended_for=(fact,))), event.t, event.text)


# nodes that ask to join


def on_nodes_waiting(state: JobState, event: NodesWaiting) -> Step:
    """Note how many nodes ask to join, and have the ranks save for it. Nobody is stopped for them before a save.

    With as many nodes as the job may have, the others are spares: they wait for a failure. So do nodes that make up no whole replica.
    """
    attempt, policy = state.attempt, state.run.policy
    admission = attempt.admission
    if not attempt.is_shared or len(attempt.members) >= policy.nodes:
        return state, ()
    may_join = replicas.whole(min(len(attempt.members) + event.count, policy.nodes), policy.node_group) > len(attempt.members)
    count = event.count if may_join else 0
    if admission is not None and admission.count:
        return replace(state, attempt=replace(attempt, admission=replace(admission, count=count))), ()
    step = None if attempt.progress.relative else attempt.progress.step
    state = replace(state, attempt=replace(attempt, admission=Admission(count, step, admission is not None and admission.save_requested)))
    if not count:
        return state, (PrintMessage("info", _spare_text(state, event.count)),) if event.count else ()
    state, actions = request_save(state)
    when = "once the ranks have saved, which they are asked to" if actions else "after the next checkpoint that is verified, or a failure"
    text = f"{count} node(s) ask to join: attempt {attempt.number} goes on, and they are taken in {when}"
    return state, (PrintMessage("info", text), *actions)


def _spare_text(state: JobState, count: int) -> str:
    """Return that nodes wait as spares, because a whole replica has more nodes."""
    policy = state.run.policy
    replica = replicas.in_words(policy.replica_size, policy.replica_source)
    return f"{count} node(s) ask to join, and wait as spares: {replica}, so that nodes are taken in by {policy.node_group}"


def request_save(state: JobState) -> Step:
    """Have the ranks save if nodes ask to join, and the script can; once in an attempt."""
    attempt = state.attempt
    admission = attempt.admission
    if not attempt.save_on_request or not attempt.is_shared or admission is None or admission.save_requested or not admission.count:
        return state, ()
    attempt = replace(attempt, admission=replace(admission, save_requested=True))
    return replace(state, attempt=attempt), (RequestSave(attempt.number, None),)


def on_saved(state: JobState) -> Step:
    """The ranks of this node have saved for nodes that ask to join: when those of all nodes have, the attempt ends."""
    attempt = state.attempt
    if state.stage is not Stage.RUNNING or not attempt.is_shared or attempt.admission is None or attempt.saved:
        return state, ()
    return replace(state, attempt=replace(attempt, saved=True)), (ReportSaved(attempt.number),)


def on_checkpoint_verified(state: JobState, event: CheckpointVerified) -> Step:
    """Take over a verified checkpoint. One that this attempt saved since nodes asked to join ends it, and they meet anew."""
    state, actions = lifecycle.on_checkpoint_verified(state, event)
    attempt, step = state.attempt, event.checkpoint.step
    admission = attempt.admission
    if state.stage is not Stage.RUNNING or not attempt.is_shared or admission is None or not admission.count:
        return state, actions
    if event.made_in != attempt.number or (step is not None and admission.step is not None and step < admission.step):
        return state, actions
    ending = sharing.end(state, MEMBERSHIP, "nodes are admitted")
    text = f"attempt {attempt.number} has saved, and is stopped: the next one begins with {admission.count} more node(s)"
    state, admission_actions = admit(state, PrintMessage("info", text))
    return state, (*actions, *ending, *admission_actions)


def on_attempt_ended(state: JobState, event: AttemptEnded) -> Step:
    """No rank is left on this node."""
    ended = replace(state, attempt=replace(state.attempt, ended=True, over_t=state.attempt.over_t or event.t))
    if state.attempt.decided and state.stage in {Stage.TEARDOWN, Stage.FOLLOWING, Stage.ADMITTING}:
        return follow_if_ready(ended, event.t)
    if state.stage is Stage.ADMITTING and state.attempt.is_shared:
        return sharing.report(replace(ended, attempt=replace(ended.attempt, evidence=())))
    return lifecycle.on_attempt_ended(state, event)


# the decision


def on_reports_gathered(state: JobState, event: ReportsGathered) -> Step:
    """Decide for all nodes, on what all of them saw. Nothing changes here: this node acts when the decision comes back (DecisionMade)."""
    view = _view(state, event)
    if _is_without_failure(view.attempt, event.kind):
        return state, (ProposeDecision(event.attempt, VOID if event.kind == VOID else RESTART),)
    decision = replace(decided(view, event), by=view.attempt.me)
    return state, (ProposeDecision(event.attempt, decision.plan.kind.value, decision),)


def _view(state: JobState, event: ReportsGathered) -> JobState:
    """Return the state by which the coordinator judges: its own where it takes part in the attempt, else that of a node that reported.

    The node of that state alerts to the decision: a coordinator that is stopping, or takes no part, has no incident of it.
    """
    attempt = state.attempt
    takes_part = attempt.number == event.attempt and attempt.is_shared and state.stage in _REPORTED
    if takes_part or not event.reports:
        return state
    report = event.reports[0]
    return replace(state, run=report.run, attempt=report.attempt, gpus=report.gpus)


def decided(state: JobState, event: ReportsGathered) -> JobDecision:
    """Return the decision: a stop that a node wants, the loss of a node, or what the evidence of all nodes says."""
    stop_decision = next((report.attempt.stop_wanted for report in event.reports if report.attempt.stop_wanted is not None), None)
    if stop_decision is not None:
        return stop_decision
    members = state.attempt.members
    saved = max((report.attempt.saved_steps.highest or 0 for report in event.reports), default=0)  # one node alone may have seen it
    state = replace(state, attempt=_with_saved(state.attempt, saved))
    facts = tuple(
        fact for report in event.reports for fact in failure.facts_of(report.attempt, event.t, sharing.shown(report.node, members))
    )
    verdict = ending.explained(replace(state, attempt=replace(state.attempt, evidence=facts)), classify(facts))
    gone_node = _gone_node(event, members)
    is_loss = gone_node is not None and verdict.cause in _OF_A_LOSS
    if gone_node is not None and is_loss:
        verdict = _loss_verdict(*gone_node, verdict, event.t)
    culprit = _culprit(event, verdict, members)
    verdict = verdict if verdict.node or culprit is None else replace(verdict, node=sharing.shown(culprit.node, members))
    view = state if culprit is None else replace(state, gpus=culprit.gpus, attempt=culprit.attempt)
    run = planning.with_saved(view.run, saved, event.attempt)
    view = replace(view, run=run, attempt=replace(_with_saved(view.attempt, saved), members=members, evidence=facts))
    decision = failure.judged(view, event.t, verdict)
    nodes_left = len(members) - len({node for node, _ in event.missing})  # one whose supervise came back is there
    return replace(decision, plan=_waiting(decision.plan, state.run, nodes_left)) if is_loss else decision


def _with_saved(attempt: Attempt, step: int) -> Attempt:
    """Return the attempt as one of which a checkpoint of this step is verified; 0: none is."""
    return replace(attempt, saved_steps=attempt.saved_steps.with_one(step)) if step else attempt


def _waiting(plan: Plan, run: Run, nodes_left: int) -> Plan:
    """Return the plan after the loss of a node, with what the nodes that are left wait for if they are too few."""
    least = sharing.needed_nodes(run)
    if plan.kind is not PlanKind.RESTART or nodes_left >= least:
        return plan
    count = least - nodes_left
    lack = f"{count} more node{'s' * (count > 1)}"
    shortage = f"{nodes_left} of the {least} that the job needs {'is' if nodes_left == 1 else 'are'} left"
    return replace(
        plan,
        reason=f"waits for {lack}, because {shortage}; then {plan.reason}",
        next_rung=f"stop with exit code 75, if {lack} {'does' if count == 1 else 'do'} not come in time (torch's join_timeout)",
    )


def _gone_node(event: ReportsGathered, members: tuple[str, ...]) -> tuple[str, str] | None:
    """Return a node that went, and how: the one that ended the attempt, if several did."""
    died = ((r.node, f.text) for r in event.reports for f in r.attempt.evidence or () if f.name == sharing.SUPERVISE_DIED)
    rows = [*event.missing, *died]
    first = next((row for row in rows if row[0] == event.node), rows[0] if rows else None)
    return None if first is None else (sharing.shown(first[0], members), first[1])


def _loss_verdict(node: str, how: str, verdict: Verdict, t: float) -> Verdict:
    """Return the verdict on a node that went. Its own evidence is lost with it, or was none."""
    has_left = how.startswith("left: ")
    how = how.removeprefix("left: ").removeprefix("lost: ")
    if how.startswith("no report"):  # it lives, as far as is known
        summary = f"node {node}: {how}"
    else:
        summary = f"node {node} left: {how}" if has_left else f"node {node} is lost: {how}"
    fact = Evidence("launcher", "node_lost", summary, node=node, t=t)
    return Verdict(
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


def _culprit(event: ReportsGathered, verdict: Verdict, members: tuple[str, ...]) -> NodeReport | None:
    """Return the report of the node that failed, as far as it is known: of the rank, of the named node, of who ended the attempt."""
    for fits in (
        lambda r: verdict.rank is not None and any(rank.rank == verdict.rank for rank in r.attempt.ranks),
        lambda r: bool(verdict.node) and sharing.shown(r.node, members) == verdict.node,
        lambda r: r.node == event.node,
    ):
        for report in event.reports:
            if fits(report):
                return report
    return event.reports[0] if event.reports else None


def on_decision_made(state: JobState, event: DecisionMade) -> Step:
    """Act on it once no rank is left here. What it counts is counted on every node."""
    if event.elsewhere:
        return _ended_elsewhere(state, event)
    if not state.attempt.is_shared or state.stage is Stage.STOPPING:
        return state, ()
    if event.kind == SUCCESS and state.stage in {Stage.STARTING, Stage.RUNNING}:
        state = replace(state, attempt=replace(state.attempt, decided=SUCCESS))
        return state, (CompleteAttempt(state.attempt.number),)
    runs = state.stage in {Stage.STARTING, Stage.RUNNING}
    state = replace(state, attempt=replace(state.attempt, decided=event.kind, decision=event.decision, awaits_agreement=False))
    return _stopped_for(state, event.t, "the other nodes ended the attempt") if runs else follow_if_ready(state, event.t)


def on_left_behind(state: JobState, event: LeftBehind) -> Step:
    """Meet the others again: they hand over what they agreed on meanwhile."""
    if not state.attempt.is_shared or state.stage is Stage.STOPPING:
        return state, ()
    runs = state.stage in {Stage.STARTING, Stage.RUNNING}
    state = replace(state, attempt=replace(state.attempt, decided=LEFT_BEHIND, awaits_agreement=False))
    text = "this node was cut off while the others continued; it rejoins at the next restart"
    state, actions = _stopped_for(state, event.t, text) if runs else follow_if_ready(state, event.t)
    return state, (PrintMessage("warning", text), *actions)


def _stopped_for(state: JobState, t: float, text: str) -> Step:
    """Stop ranks of an attempt about which is decided already."""
    token, number = state.token + 1, state.attempt.number
    state = replace(state, stage=Stage.FOLLOWING, token=token, attempt=replace(state.attempt, over_t=t))
    return state, (StopRanks(number, SIGTERM, state.run.policy.stop.grace_s, "failure", text), sharing.teardown_timer(state, token))


def follow_if_ready(state: JobState, t: float) -> Step:
    """Act on the decision once it is known and no rank is left on this node."""
    attempt = state.attempt
    if not attempt.ended or not attempt.decided:
        return state, ()
    if attempt.decided == SUCCESS:
        return lifecycle.done(state)
    if attempt.decision is not None:
        return failure.act_on(state, t, attempt.decision)
    if attempt.decided in {VOID, RESTART}:
        return start.select(replace(state, run=replace(state.run, reason="membership")), t)
    return start.select(replace(state, run=replace(state.run, reason="failure")), t)


def _ended_elsewhere(state: JobState, event: DecisionMade) -> Step:
    """End as the job did, in whose last attempt this node took no part."""
    if not state.waits_to_meet:
        return state, ()
    if event.kind == SUCCESS or event.decision is None:
        return lifecycle.done(state)
    decision = event.decision
    state = replace(state, attempt=replace(state.attempt, decision=decision))
    state, opening = start.with_incident(state, event.t, decision.verdict.summary, decision.verdict.rank, (decision.verdict, decision.plan))
    state, actions = start.give_up(replace(state, attempt=replace(state.attempt, awaits_agreement=False)), decision.verdict, decision.plan)
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
    verdict = Verdict(Cause.DEPENDENCY, 0.95, f"the coordinator of the nodes refuses this node: {event.text}"[:600], "nodes:refused")
    hint = event.text.rpartition(": ")[2]  # `what happened: what to do` (cluster/wire.py)
    return _leave_alone(state, event.t, verdict, Plan(PlanKind.STOP, "this node cannot take part in the job", hint[:600], "beginning", 78))


def _without_coordinator(state: JobState, t: float, text: str) -> Step:
    """Stop with 75, and name what to start where if no scheduler does."""
    host = sharing.shown(state.attempt.coordinator, state.attempt.members)
    first = f"node {host} or the node that replaces it" if host else "the node that serves the rendezvous"
    again = f"start the same command again on every node, beginning with {first}; the job resumes from its newest checkpoint"
    hint = "the scheduler's requeue continues this run" if state.run.policy.is_scheduled else again
    verdict = Verdict(Cause.RENDEZVOUS, 0.7, f"{text}{f'; it was on node {host}' if host else ''}", "coordinator:gone", transient=True)
    return _leave_alone(state, t, verdict, Plan(PlanKind.STOP, "without a coordinator the nodes would diverge", hint, "coordinator", 75))


def _leave_alone(state: JobState, t: float, verdict: Verdict, plan: Plan) -> Step:
    """End this node alone, whose ranks are gone."""
    opening: tuple[Action, ...] = ()
    if state.run.incident is None:
        state, opening = start.with_incident(state, t, verdict.summary)
    state, actions = start.leave(state, verdict, plan)
    return state, (*opening, *actions)
