"""Nodes that ask to join an attempt that runs: its ranks save, end in order, and all nodes meet anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core import deadlines
from supervisor.core.actions import PrintMessage, ReportSaved, RequestSave
from supervisor.core.nodes import replicas, sharing
from supervisor.core.state import Admission, Stage
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.events import CheckpointVerified, NodesWaiting
    from supervisor.core.state import JobState, Step

#: The kind of an end (supervisor/cluster/model.py has all) for nodes that ask to join.
MEMBERSHIP = "membership"


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
        return state.with_attempt(admission=replace(admission, count=count)), ()
    step = None if attempt.progress.relative else attempt.progress.step
    state = state.with_attempt(admission=Admission(count, step, admission is not None and admission.save_requested))
    if not count:
        return state, (PrintMessage("info", _spare_text(state, event.count)),) if event.count else ()
    state, actions = request_save(state)
    when = "once the ranks have saved, which they are asked to" if actions else "after the next checkpoint that is verified, or a failure"
    text = f"{count} node(s) ask to join: attempt {attempt.number} continues, and they are taken in {when}"
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
    return state.with_attempt(admission=replace(admission, save_requested=True)), (RequestSave(attempt.number, None),)


def take_save(state: JobState) -> Step:
    """The ranks of this node have saved for nodes that ask to join: when those of all nodes have, the attempt ends."""
    attempt = state.attempt
    if state.stage is not Stage.RUNNING or not attempt.is_shared or attempt.admission is None or attempt.saved:
        return state, ()
    return state.with_attempt(saved=True), (ReportSaved(attempt.number),)


def admit_after_save(state: JobState, event: CheckpointVerified) -> Step:
    """End the attempt for nodes that ask to join, once a checkpoint is verified that it saved since they came; they meet anew."""
    attempt, step = state.attempt, event.checkpoint.step
    admission = attempt.admission
    if state.stage is not Stage.RUNNING or not attempt.is_shared or admission is None or not admission.count:
        return state, ()
    if event.made_in != attempt.number or (step is not None and admission.step is not None and step < admission.step):
        return state, ()
    ending = sharing.end(state, MEMBERSHIP, "nodes are admitted")
    text = f"attempt {attempt.number} has saved, and is stopped: the next one begins with {admission.count} more node(s)"
    state, actions = admit(state, PrintMessage("info", text))
    return state, (*ending, *actions)


def admit(state: JobState, message: PrintMessage) -> Step:
    """Stop ranks that did not fail, so that the nodes meet again."""
    stop = deadlines.stop_ranks(state, "membership")
    state = state.entering(Stage.ADMITTING)
    return state, (message, stop, deadlines.teardown_timer(state))
