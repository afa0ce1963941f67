"""Whose checkpoint the ranks loaded, and whether the newest save of this run is still there.

A run's first attempt may begin from anything: that is how a fine-tuning begins. Once the run has made a step, an attempt that loads what
neither this run nor an earlier one of the same job wrote, and what lies beyond every step of this run, trains on from another training. Its
next saves, or the script's own rotation, then take the place of this run's. So it is ended as soon as the load is seen, and the run stops:
another attempt would load the same. Not so for a path that the user's command names, nor for one that was loaded before the first step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core import stop
from supervisor.core.actions import Alert, PrintMessage
from supervisor.core.attempt import known_checkpoints, resumption
from supervisor.core.checkpoint_model import CheckpointOwner
from supervisor.core.events import SaveSearched
from supervisor.core.failure import judgement, teardown
from supervisor.core.model import Cause, Claim, Evidence
from supervisor.core.nodes import admission
from supervisor.core.state import Stage
from supervisor.core.values import replace
from supervisor.core.watch import loss_and_pace
from supervisor.strategies.situation import FOREIGN_CHECKPOINT

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.checkpoint_model import LoadedCheckpoint
    from supervisor.core.events import CheckpointsLoaded, CheckpointVerified, NewestSaveGone
    from supervisor.core.state import JobState, Run, Step

SAVE_GONE = "save_gone"
#: The load was seen, and who wrote the checkpoint is judged by records, not by its content alone.
SURE = 0.97
#: Paths that a run remembers as its base; a base model has fewer files than its ranks may log (load_log.py).
MOST_BASES = 64


def on_checkpoints_loaded(state: JobState, event: CheckpointsLoaded) -> Step:
    """Remember what a run begins from; once it has made a step, end an attempt that loaded another training's checkpoint."""
    run = state.run
    if run.reached is None:
        begun_from = tuple(dict.fromkeys((*run.begun_from, *(load.path for load in event.loads))))[-MOST_BASES:]
        return replace(state, run=replace(run, begun_from=begun_from)), ()
    foreign = next((load for load in event.loads if _is_foreign(state, load)), None)
    if foreign is None:
        return state, ()
    text = (
        f"the ranks loaded {foreign.path}, by its name or content at step {foreign.step}, beyond step {run.reached} of this run, "
        f"which did not save it: {foreign.why}"
    )
    claim = Claim(Cause.CHECKPOINT_MISMATCH, SURE)
    fact = Evidence("checkpoint", "foreign", text, t=event.t, fields=((FOREIGN_CHECKPOINT, foreign.path),), claim=claim)
    state = replace(state.with_attempt(ended_for=(fact,)), run=_without(run, foreign.path))
    return teardown.stop_attempt(state, event.t, text)


def _without(run: Run, path: str) -> Run:
    """Return the run without a verified checkpoint that is not its own."""
    verified = tuple(checkpoint for checkpoint in run.verified if checkpoint.path != path)
    is_newest = run.newest is not None and run.newest.path == path
    return replace(run, verified=verified, newest=(verified[-1] if verified else None) if is_newest else run.newest)


def _is_foreign(state: JobState, load: LoadedCheckpoint) -> bool:
    """Whether a load is of another training, beyond this one."""
    reached = state.run.reached
    if load.owner is not CheckpointOwner.FOREIGN or load.replaced or load.step is None or reached is None:
        return False
    return load.step > reached and load.path not in state.run.begun_from


def on_newest_save_gone(state: JobState, event: NewestSaveGone) -> Step:
    """Alert that what the run saved last is gone, and keep that with the attempt's warnings; or that a newer save stays."""
    if event.is_over:
        text = f"a newer save of this run stays: {event.path}"
        return loss_and_pace.without_warning(state, SAVE_GONE), (PrintMessage("info", text),)
    text = (
        f"the newest save of this run, {event.path}, is gone, and none is newer: a person removed it, or a rotation that sorts by the "
        "number in the name; a restart would continue from an older one"
    )
    return loss_and_pace.with_warning(state, SAVE_GONE, text), (Alert(SAVE_GONE, state.attempt.number, text),)


def on_checkpoint_verified(state: JobState, event: CheckpointVerified) -> Step:
    """A verified checkpoint beyond any before in this run is progress: it clears the budget of what failed before it was made.

    One that is verified between two attempts counts when it is chosen (selection.py): then it is known which failures came before it.
    """
    verified, is_own = event.checkpoint, event.made_in == state.attempt.number > 0
    state = known_checkpoints.with_verified(state, verified, is_own=is_own)
    report: tuple[Action, ...] = ()
    if is_own:
        state, report = resumption.reported(resumption.with_save(state, verified))
        state, closed = resumption.closed_by_saves(state)
        report = (*report, *closed)
    if state.run.verified[-1].path == verified.path:
        if state.stage is Stage.RUNNING and verified.step is not None:
            state = replace(state, run=known_checkpoints.with_saved(state.run, verified.step, event.made_in or state.attempt.number))
        state = state.with_run(newest=verified)
    state, admitted = admission.admit_after_save(state, event)
    return state, (*report, *admitted)


def on_save_searched(state: JobState, event: SaveSearched) -> Step:
    """Use what the disk holds: of a failed attempt its last save, of a stopped one the save that no rank reported."""
    if state.stage is Stage.TEARDOWN:
        return judgement.take_last_save(state, event.t, event.newest)
    return stop.take_save(state, event.newest)


def on_find_overdue(state: JobState, t: float) -> Step:
    """The disk does not answer: whether a save is on it is unknown."""
    return on_save_searched(state, SaveSearched(t, state.attempt.number, None))
