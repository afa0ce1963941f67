"""Several nodes begin an attempt together: they meet, agree on what to resume from, and only then start their ranks.

    GatherNodes ─> NodesGathered ─> SelectCheckpoint ─> CheckpointSelected ─> BeginAttempt
                                                              │ no checkpoint that all nodes have ─> stop (65) on every node
                                                              │ only this node lacks it, and the others can go on ─> stop (65) here
                                                              └ only another node lacks it: its leaving fences the attempt

A node chooses nothing before the meeting. What happens otherwise: rank 2 is killed while rank 0 saves step 60 for 1.5 s. The node of rank 2
looks at once and finds step 40. The others look when their ranks are gone and find step 60. One attempt trains on from both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core import beginning, planning
from supervisor.core.actions import Say, SelectCheckpoint, SetTimer
from supervisor.core.model import Cause, Plan, PlanKind, Verdict
from supervisor.core.state import JobState, Stage, changed

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.inbox import CheckpointSelected, NodesGathered

    Step = tuple[JobState, tuple[Action, ...]]

#: Agreements whose attempts are remembered: checkpoints older than these are told apart by their digests alone.
KEPT_AGREEMENTS = 20
HINT = "put the checkpoints on storage that all nodes share, or copy the same one to every node, and start again"


def on_nodes_gathered(state: JobState, event: NodesGathered) -> Step:
    """Look for checkpoints together with the other nodes."""
    if state.stage is not Stage.STARTING or not state.gathers:
        return state, ()
    token = state.token + 1
    state = changed(state, token=token)
    select = SelectCheckpoint(
        state.attempt,
        state.poisoned,
        nodes=event.nodes,
        node=event.node,
        agreed=state.agreed,
        overrides=state.overrides,
        knows=state.newest is not None and state.policy.checkpoints_declared,
        least_nodes=state.policy.least_nodes,
        agreements=state.agreements,
    )
    return state, (select, SetTimer("select", token, state.policy.select_deadline_s))


def on_checkpoint_selected(state: JobState, event: CheckpointSelected) -> Step:
    """Begin from the one that was chosen here (one node), or by all nodes together."""
    if state.stage is Stage.SELECTING and not event.agreed:
        return beginning.on_checkpoint_selected(state, event)
    if state.stage is not Stage.STARTING or not state.gathers or not event.agreed:
        return state, ()
    if event.again:
        held = "; ".join(f"{node}: {text}" for node, text in event.held)
        return state, (Say("warning", f"another node cannot load what this one resumes from, and leaves: {held}"[:600]),)
    if event.leaves:
        return _leave(changed(state, gathers=False), event)
    state = planning.with_poisoned(state, event.poison, None)
    agreements = (*state.agreements, (state.attempt, event.agreed))[-KEPT_AGREEMENTS:]
    state = changed(state, agreed=event.agreed, agreements=agreements, overrides=event.overrides)
    if event.chosen is None and event.held and state.policy.checkpoints_declared:
        return _nothing_in_common(state, event)
    return beginning.on_checkpoint_selected(state, event)


def _nothing_in_common(state: JobState, event: CheckpointSelected) -> Step:
    """Stop on every node: some would resume and others begin from scratch, in one training."""
    held = "; ".join(f"{node}: {text}" for node, text in event.held)
    told = f"no checkpoint that every node has and can load: {held}"[:600]
    verdict = Verdict(Cause.CHECKPOINT_MISMATCH, 0.95, told, "checkpoint_mismatch:nodes")
    why = f"nodes would train on from different states: {told}"
    return beginning.stop_for(state, event.t, verdict, Plan(PlanKind.STOP, why, HINT, "beginning", 65))


def _leave(state: JobState, event: CheckpointSelected) -> Step:
    """Stop here alone: the others have what they resume from, and can go on without this node."""
    held = "; ".join(f"{node}: {text}" for node, text in event.held)
    told = f"this node does not have what the other nodes resume from: {held}"[:600]
    verdict = Verdict(Cause.CHECKPOINT_MISMATCH, 0.95, told, "checkpoint_mismatch:this-node")
    why = "the other nodes go on without this one"
    return beginning.stop_for(state, event.t, verdict, Plan(PlanKind.STOP, why, HINT, "beginning", 65))


def on_select_overdue(state: JobState, t: float) -> Step:
    """The nodes do not come to an agreement: one of them cannot read its checkpoints. None can begin alone."""
    if not state.gathers:
        return state, ()
    told = f"the nodes did not agree on a checkpoint within {state.policy.select_deadline_s:.0f} s"
    verdict = Verdict(Cause.IO_ERROR, 0.8, told, "select:overdue", transient=True)
    return beginning.stop_for(state, t, verdict, Plan(PlanKind.STOP, told, "the scheduler's requeue continues this run", "beginning", 75))
