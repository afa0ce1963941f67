"""The checkpoints that a run knows, in their order, and those that it rejects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core import budget
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.model import CheckpointRef
    from supervisor.core.state import JobState, Run

KEPT_CHECKPOINTS = 10


def with_verified(state: JobState, checkpoint: CheckpointRef, *, is_own: bool) -> JobState:
    """Return the state that knows a good checkpoint. `is_own`: the current attempt saved it.

    `run.verified` is in the order of checkpointing/ordering.py, oldest first. The step alone does not give it: an attempt that went back
    from step 100 to 60 saves 65 later. So a save of this attempt is behind its resume point, and a save of an earlier attempt
    is before that. The step orders each part, because the watcher reports several in one scan newest first.
    """
    known, resume = state.run.verified, state.attempt.resume
    resumed = next((at + 1 for at, c in enumerate(known) if resume is not None and c.path == resume.path), 0)
    before, after = known[:resumed], known[resumed:]
    if is_own or resume is None:
        verified = (*_without(before, checkpoint), *_by_step(after, checkpoint))
    elif any(c.path == checkpoint.path for c in known):
        verified = tuple(checkpoint if c.path == checkpoint.path else c for c in known)
    else:
        verified = (*_by_step(before[:-1], checkpoint), *before[-1:], *after)
    return _with_verified(state, verified, checkpoint)


def with_selected(state: JobState, chosen: CheckpointRef, older: tuple[CheckpointRef, ...]) -> JobState:
    """Return the state in which the chosen checkpoint is the newest good one, after `older`, or after those known where none is given."""
    known, rejected = state.run.verified, state.run.rejected
    place = next((at for at, c in enumerate(known) if c.path == chosen.path), len(known))
    # the selection passed over every checkpoint newer than the chosen one: such a one is good no more, unless the selection only avoided it
    older = older or tuple(c for at, c in enumerate(known) if at < place or c.path in rejected)
    return _with_verified(state, (*_without(older, chosen), chosen), chosen)


def _without(known: tuple[CheckpointRef, ...], checkpoint: CheckpointRef) -> tuple[CheckpointRef, ...]:
    return tuple(c for c in known if c.path != checkpoint.path)


def _by_step(known: tuple[CheckpointRef, ...], checkpoint: CheckpointRef) -> tuple[CheckpointRef, ...]:
    others = _without(known, checkpoint)
    greater = (at for at, c in enumerate(others) if c.step is not None and checkpoint.step is not None and c.step > checkpoint.step)
    place = next(greater, len(others))
    return (*others[:place], checkpoint, *others[place:])


def _with_verified(state: JobState, verified: tuple[CheckpointRef, ...], checkpoint: CheckpointRef) -> JobState:
    """Return the state with the newest of these. `checkpoint` is trusted again if it was saved at a rejected path, beyond the trouble."""
    run = replace(state.run, verified=verified[-KEPT_CHECKPOINTS:])
    until = run.untrusted_through_step
    if checkpoint.path in run.rejected and (until is None or (checkpoint.step is not None and checkpoint.step > until)):
        run = replace(run, rejected=tuple(path for path in run.rejected if path != checkpoint.path))
    return replace(state, run=run)


def with_rejected(state: JobState, paths: tuple[str, ...], reached: int | None) -> JobState:
    """Return the state that rejects these checkpoints, until one is written beyond the step that the run has reached."""
    new = tuple(path for path in paths if path not in state.run.rejected)
    if not new:
        return state
    known = (state.run.untrusted_through_step, reached, *(c.step for c in state.run.verified if c.path in new))
    until = max((step for step in known if step is not None), default=None)
    rejected, steps_back = (*state.run.rejected, *new), state.run.steps_back + len(new)
    return state.with_run(rejected=rejected, steps_back=steps_back, untrusted_through_step=until)


def with_saved(run: Run, step: int, made_in: int) -> Run:
    """Return the run whose attempt `made_in` saved a checkpoint of `step` that is verified: beyond any before it is progress."""
    if step <= run.saved_high_water:
        return run
    return replace(run, saved_high_water=step, failures=budget.past_checkpoint(run.failures, step, made_in))
