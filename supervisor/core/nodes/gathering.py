"""Several nodes begin an attempt together: they meet, agree on what to resume from, and only then start their ranks.

    GatherNodes ─> NodesGathered ─> SelectCheckpoint ─> CheckpointSelected ─> BeginAttempt
                                                              │ they do not fit each other ─> stop (65, 75, 78) on every node
                                                              │ only this node does not, and the others can continue ─> stop here
                                                              └ only another node does not: its exit ends the attempt

A node chooses nothing before the meeting. An example without this rule: rank 2 is killed while rank 0 saves step 60 for 1.5 s. The node of
rank 2 searches at once and finds step 40. The others search when their ranks are gone and find step 60. One attempt trains on from both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from supervisor.core.actions import Alert, PrintMessage, SelectCheckpoint, SetTimer
from supervisor.core.attempt import finish, known_checkpoints, programs, start
from supervisor.core.failure import planning
from supervisor.core.health import findings
from supervisor.core.model import Cause, Evidence, FailureVerdict, Plan, PlanKind
from supervisor.core.nodes import global_batch, sharing
from supervisor.core.state import Stage
from supervisor.core.units import span_text
from supervisor.core.values import Struct, asdict, replace

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.events import CheckpointSelected, NodesGathered, NodesMissing
    from supervisor.core.setup_model import HeldBatch
    from supervisor.core.state import JobState, Step

#: Agreements whose attempts are remembered: older checkpoints are compared by their digests alone.
KEPT_AGREEMENTS = 20
#: Causes of ranks that cannot reach each other.
BETWEEN_NODES = frozenset({Cause.NCCL_TIMEOUT, Cause.NCCL_NETWORK, Cause.GLOO_ERROR, Cause.HANG_NO_ERROR})
#: Failures between nodes after which these are tried against each other, and again after as many more.
CHECKED_EVERY = 2


class _NodesApart(Struct, frozen=True):
    """A stop where not all nodes can resume together: what the verdict and the plan are of it."""

    summary: str
    why: str
    fingerprint: str
    hint: str = "put the checkpoints on storage that all nodes share, or copy the same one to every node, and start again"


_NAMED = 3  # of the nodes that failed the node check, each with the command that allows it again
_MIXED = "nodes would train on from different states"
_NOTHING_IN_COMMON = _NodesApart("no checkpoint that every node has and can load", _MIXED, "checkpoint_mismatch:nodes")
_LEAVES = _NodesApart(  # of this node alone: the others have what they resume from
    "this node does not have what the other nodes resume from", "the other nodes continue without this one", "checkpoint_mismatch:this-node"
)
_RESUME_DIFFERS = _NodesApart(
    "only some of the nodes would resume: their commands differ",
    _MIXED,
    "checkpoint_mismatch:resume-option",
    "give every node the same command, or the same --resume-args or --resume-switch, and start again",
)


def on_nodes_missing(state: JobState, event: NodesMissing) -> Step:
    """Wait for as many nodes as the attempt needs, for this long and not for ever; a node that comes meanwhile is taken."""
    attempt = state.attempt
    if not attempt.awaits_agreement or attempt.members:
        return state, ()
    until = attempt.missing_until_t
    is_new = event.count > 0 and (until is None or event.t >= until)
    until = event.t + event.within_s if is_new else until
    state = state.with_attempt(missing=event.count, missing_until_t=until)
    if not event.count:
        return state, (PrintMessage("info", "as many nodes are there as the attempt needs"),)
    left_s = max((until or event.t) - event.t, 0.0)
    rest = f"for at most {span_text(left_s)}; then the run stops (75)" if is_new else f"for {span_text(left_s)} more"
    message = PrintMessage("info", f"waits for {event.count} more node(s), {rest}")
    return state, (message, *((SetTimer("nodes", state.token, event.within_s),) if is_new else ()))


def on_nodes_overdue(state: JobState, t: float) -> Step:
    """The nodes that are missing do not come."""
    attempt = state.attempt
    if not attempt.awaits_agreement or attempt.members or not attempt.missing or t < (attempt.missing_until_t or 0.0):
        return state, ()
    least = max(sharing.needed_nodes(state.run), attempt.missing + 1)  # this node is there
    text = f"{least - attempt.missing} of the {least} nodes that the job needs are there, and no other came in time"
    if state.run.least_nodes > state.run.policy.least_nodes:
        text += "; with fewer nodes than had trained, the job failed before its first step"
    cause = Cause.NODE_LOST if state.run.last_agreement else Cause.RENDEZVOUS  # they had met before, or never
    verdict = FailureVerdict(cause, 0.9, text, "nodes:missing", transient=True)
    hint = "the scheduler's requeue continues this run; --rdzv-conf=join_timeout=SECONDS sets how long nodes are waited for"
    return finish.stop_for(state, t, verdict, Plan(PlanKind.STOP, "too few nodes to continue", hint, "beginning", 75))


def on_nodes_gathered(state: JobState, event: NodesGathered) -> Step:
    """Look for checkpoints together with the other nodes."""
    if not state.attempt.awaits_agreement:
        return state, ()
    state = state.entering(Stage.STARTING).with_attempt(
        number=event.number or state.attempt.number,
        node=event.node,
        members=event.members,
        me=event.members[event.node] if event.members else "",
        coordinator=event.coordinator,
        met_ranks=event.world_size,
    )
    if event.world_size % state.run.policy.replica_size:  # torch met in a way of its own, or the nodes have unlike commands
        nodes, ranks = len(event.members), event.world_size
        misfit = f"the {ranks} ranks of the {nodes} nodes that met hold no whole number of replicas"
        return start.stop_for_layout(state, event.t, misfit, "", 75 if nodes < state.run.policy.nodes else 78)
    select = SelectCheckpoint(
        state.attempt.number,
        state.run.rejected,
        nodes=event.nodes,
        node=event.node,
        last_agreement=state.run.last_agreement,
        overrides=state.run.overrides,
        had_checkpoint=state.run.newest is not None and state.run.policy.checkpoints_declared,
        least_nodes=sharing.least_nodes(state.run),
        most_nodes=state.run.policy.nodes,
        agreed_attempts=state.run.agreed_attempts,
        diverged_since_t=state.run.diverged_since_t,
        resume_by=programs.resume_by(state),
        own_only=programs.takes_own_only(state),
        programs=programs.known_programs(state),
        resume_knobs=programs.resume_knobs(state),
        past=planning.past_failures(state),
        check=_wanted_check(state),
        gpus=tuple(gpu.uuid for gpu in state.gpus if not gpu.quarantined),
        batch=global_batch.held(state, programs.current_knobs(state, state.run.overrides)),
        ever_loaded=state.run.ever_loaded,
    )
    return state, (select, SetTimer("select", state.token, state.run.policy.select_silence_s))


def _wanted_check(state: JobState) -> str:
    """Return why the nodes are to be tried against each other before this attempt, "" for no reason.

    A failure between nodes rarely shows which of them is bad. One such failure may be chance.
    """
    when, reason = state.run.policy.check_nodes, state.run.reason
    if when == "start" and not state.run.last_agreement and not state.run.batch_ranks:
        return "start"  # no attempt has begun, and no node has left for it
    if when == "never" or reason not in {"start", "failure"}:
        return ""
    if reason == "start":
        return "start" if when == "start" else ""
    recent = [failure for failure in state.run.failures if not failure.progressed_since]
    between = [failure for failure in recent if failure.cause in BETWEEN_NODES]
    return "doubt" if between and recent[-1] is between[-1] and not len(between) % CHECKED_EVERY else ""


class Agreement(NamedTuple):
    """The effect of all nodes' choice here. begins: this node continues, and begins from their choice."""

    state: JobState
    actions: tuple[Action, ...] = ()
    begins: bool = False


def take_agreement(state: JobState, event: CheckpointSelected) -> Agreement:
    """Take over the common choice of all nodes and their other agreements; or end where they, or this one, cannot continue."""
    if not state.attempt.awaits_agreement:
        return Agreement(state)
    if event.peer_leaves:
        return Agreement(*_others_leave(state, event))
    ends = _leave_the_others if event.this_node_leaves else _stop_unlike if event.cannot_work else _stop_unfit if event.unfit else None
    ends = _stop_for_batch if ends is None and event.batch.refused else ends
    if ends is not None:
        return Agreement(*ends(state, event))
    state = known_checkpoints.with_rejected(state, event.rejected, None)
    if event.past is not None:  # its fields are those of the run
        state = state.with_run(**asdict(event.past))
    agreed = (*state.run.agreed_attempts, event.agreement)[-KEPT_AGREEMENTS:]
    state = state.with_run(
        last_agreement=event.agreement,
        agreed_attempts=agreed,
        overrides=event.overrides,
        batch_ranks=event.batch.ranks,
        last_ranks=state.attempt.met_ranks,
    ).with_attempt(overrides=tuple((dict(event.overrides) | dict(event.batch.values)).items()))
    state = programs.with_programs(state, event.programs)
    if event.ever_loaded and not state.run.ever_loaded:  # one rank may load for all: this node alone would not begin again
        state = state.with_run(ever_loaded=True).with_attempt(scratch_refusal=None)
    nothing_in_common = event.chosen is None and event.node_offers and not event.silent
    if event.resume_differs or (nothing_in_common and state.run.policy.checkpoints_declared):
        return Agreement(*_stop_apart(state, event, _RESUME_DIFFERS if event.resume_differs else _NOTHING_IN_COMMON))
    return Agreement(state, _batch_reported(state, event.batch), begins=True)


def _batch_reported(state: JobState, held: HeldBatch) -> tuple[Action, ...]:
    """Report how the global batch is held with another number of ranks, or that it is not; one node alerts to it."""
    if not held.text:
        return ()
    alert = (Alert("batch_changed", state.attempt.number, held.text),) if state.attempt.node == 0 else ()
    return (PrintMessage("info" if held.kept else "warning", held.text), *alert)


def _others_leave(state: JobState, event: CheckpointSelected) -> Step:
    """Begin nothing: their exit ends the attempt. The global batch stays that of all nodes that met, if a node failed the node check."""
    why = "; ".join(event.cannot_work) or "; ".join(f"{node}: {text}" for node, text in event.node_offers or _named(state, event.unfit))
    reason = "work with this one" if event.cannot_work else "pass the node check" if event.unfit else "resume as this one does"
    if event.unfit:
        run = replace(state.run, batch_ranks=event.batch.ranks)
        state = replace(state.with_attempt(peers_failed_node_check=True), run=run)
    return state, (PrintMessage("warning", f"another node cannot {reason}, and leaves the job: {why}"[:600]),)


def _leave_the_others(state: JobState, event: CheckpointSelected) -> Step:
    """End this node alone: the others continue without it."""
    if event.unfit:
        return _stop_unfit(state, event)
    state = state.with_attempt(members=())
    if event.cannot_work:
        return _stop_unlike(state, event)
    return _stop_apart(state, event, _RESUME_DIFFERS if event.resume_differs else _LEAVES)


def _stop_apart(state: JobState, event: CheckpointSelected, stop: _NodesApart) -> Step:
    held = tuple(f"{node}: {text}" for node, text in event.node_offers)
    because = tuple(Evidence("checkpoint", "held", row, t=event.t) for row in held)
    verdict = FailureVerdict(Cause.CHECKPOINT_MISMATCH, 0.95, stop.summary, stop.fingerprint, because=because)
    hint = event.remedy or stop.hint
    return finish.stop_for(state, event.t, verdict, Plan(PlanKind.STOP, f"{stop.why}: {'; '.join(held)}"[:600], hint, "beginning", 65))


def _stop_unlike(state: JobState, event: CheckpointSelected) -> Step:
    """Stop before a rank starts: the environments do not fit each other. On every node, or on the one that joined."""
    because = tuple(Evidence("network", "environment", text, t=event.t) for text in event.cannot_work)
    verdict = FailureVerdict(Cause.DEPENDENCY, 0.95, event.cannot_work[0][:300], "environment:nodes", because=because)
    hint = "make it the same on all nodes, then start again; --set health.enabled=false starts in spite of it"
    why = f"the nodes cannot work together: {'; '.join(event.cannot_work)}"[:600]
    return finish.stop_for(state, event.t, verdict, Plan(PlanKind.STOP, why, hint, "beginning", 78))


def _stop_unfit(state: JobState, event: CheckpointSelected) -> Step:
    """Stop before a rank starts: nodes failed the node check. On every node, or on one of those."""
    alone = event.this_node_leaves
    unfit = tuple(row for row in event.unfit if not alone or row[0] == state.attempt.node)
    named = _named(state, unfit)
    because = tuple(Evidence("health", "node_check", f"{node}: {text}", node=node, t=event.t) for node, text in named)
    failed = [f"node {node} fails the node check: {text}"[:300] for node, text in named]
    verdict = FailureVerdict(Cause.NONE, findings.SURE, failed[0], "node:unfit", because=because, node=named[0][0])
    reasons, allowing, in_use = list[str](), list[str](), list[str]()
    for text, (node, _), (number, _) in zip(failed, named, unfit, strict=True):
        host, is_excluded = node.partition(":")[0], number not in event.not_excluded
        reasons.append(f"{text}; the node is {'excluded' if is_excluded else 'not excluded: its ledger cannot be written'}")
        (allowing if is_excluded else in_use).append(host)
    why = "; ".join(reasons)[:600] + (", and the others continue without it" if alone else "")
    hints = [f"once it is repaired: `supervise nodes allow {host}`" for host in allowing[:_NAMED]]
    if len(allowing) > _NAMED:
        hints.append("`supervise nodes` lists the others")
    if in_use:
        hints.insert(0, f"keep the job off {', '.join(in_use)[:300]} until that is repaired")
    elif not alone:
        hints.insert(0, "the scheduler's requeue continues this run on other nodes")
    hint = "; ".join(hints)
    state = state.with_attempt(members=()) if alone else state
    return finish.stop_for(state, event.t, verdict, Plan(PlanKind.STOP, why, hint, "beginning", 75))


def _named(state: JobState, unfit: tuple[tuple[int, str], ...]) -> list[tuple[str, str]]:
    """Return what people call the nodes that failed the node check, each with the finding."""
    members = state.attempt.members
    return [(sharing.node_name(members[index], members) if index < len(members) else str(index), text) for index, text in unfit]


def _stop_for_batch(state: JobState, event: CheckpointSelected) -> Step:
    """Stop on every node before a rank starts: the nodes that are there would train with another global batch, and it is required."""
    summary = event.batch.text
    verdict = FailureVerdict(Cause.NONE, findings.SURE, summary[:300], "batch:not-held")
    hint = "the scheduler's requeue continues this run, once as many nodes are there as before; nodes.batch=hold continues without them"
    return finish.stop_for(state, event.t, verdict, Plan(PlanKind.STOP, f"nodes.batch=require: {summary}"[:600], hint, "beginning", 75))
