"""The last line of a run: how far it came, the cost of its failures, and the checkpoint to resume from. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.attempt import programs
from supervisor.core.failure import losses
from supervisor.report.wording import position_text, step_text
from supervisor.strategies.situation import BATCH_KNOBS

if TYPE_CHECKING:
    from supervisor.core.model import CheckpointRef
    from supervisor.core.state import JobState


def last_line(state: JobState, code: int, newest: CheckpointRef | None, *, all_verified: bool = True, mirrored: str = "") -> str:
    """Return the last line of a run: how far it came, what failed on the way and what that cost, and its newest good checkpoint.

    If it was stopped, also whether the same command continues from that. newest: as found once no rank was left. all_verified: False if a
    later save was not verified in time. mirrored: how many of its saves the mirrors hold, "" without a mirror.
    """
    stopped = state.run.stop is not None and code != 0
    if stopped and not state.attempt.number:
        return "stopped before the first attempt: the command was not started"
    how = "the command left with 0" if state.run.hidden else "done" if code == 0 else "stopped" if stopped else "failed"
    reached = [f"{how}{_reached(state)}{_cost(state)}", *([f"but {state.run.hidden}"] if state.run.hidden else [])]
    if batch := _changed(state):
        reached.append(f"its last attempt trained with {batch}")
    where = "" if newest is None else named(newest)
    if newest is not None and code == 0 and all_verified:
        reached.append(f"the newest checkpoint is verified: {where}")
    elif newest is not None:
        reached.append(f"the newest verified checkpoint is {where}")
    elif stopped or not all_verified:
        reached.append("no checkpoint of this run was verified")
    if stopped and newest is not None:
        resumes = programs.resumes_at_next_start(state, code)
        reached.append(f"the same command {'resumes from it' if resumes else 'resumes only if the script does so by itself'}")
    if stopped and state.attempt.unsaved and not state.attempt.saved:
        reached.append(f"the requested save was not made: {state.attempt.unsaved}")
    if not all_verified:
        reached.append("the last save was not verified in time: `supervise checkpoints verify PATH` checks it")
    return "; ".join([*reached, *([mirrored] if mirrored else [])])


def begins_text(state: JobState, code: int, newest: CheckpointRef | None) -> str:
    """Return from what the same command, started again after this exit code, would continue. newest: the newest verified checkpoint."""
    if newest is None:
        declared = state.run.policy.checkpoints_declared
        return "from scratch: no checkpoint is verified" if declared else "what the script loads by itself: no --checkpoints was given"
    if programs.resumes_at_next_start(state, code):
        return f"{position_text(newest.shown_step, newest.epoch) or 'the newest verified checkpoint'}: {newest.path}"
    return f"what the script loads by itself; the newest verified checkpoint is {named(newest)}"


def named(checkpoint: CheckpointRef) -> str:
    """Return a checkpoint's path, with its step or epoch."""
    position = position_text(checkpoint.shown_step, checkpoint.epoch)
    return f"{checkpoint.path} ({position})" if position else checkpoint.path


def _reached(state: JobState) -> str:
    progress = state.attempt.progress
    if progress.step is None or (progress.relative and state.attempt.steps_seen < 1):  # then it is where the attempt began
        return " at step unknown" if state.run.stop is not None and state.run.exit_code else ""
    total = state.attempt.total
    short = f" of {total}" if state.run.exit_code == 0 and total is not None and not progress.relative and progress.step < total else ""
    return f" at {step_text(progress.step, relative=progress.relative)}{short}"


def _cost(state: JobState) -> str:
    """Return how many incidents there were, and the time that they cost; at least that, where no absolute step shows the repeated work."""
    total, attempt = losses.total(state), state.attempt
    if not total.incidents:
        return ", no incident"
    different = total.incidents - _twins(state)
    alike = f" ({'the same failure' if different == 1 else f'{different} different failures'})" if different < total.incidents else ""
    count = ("1 incident" if total.incidents == 1 else f"{total.incidents} incidents") + alike
    counts_all = attempt.progress.step is not None and not attempt.progress.relative
    at_least = "" if counts_all or (state.run.exit_code != 0 and not attempt.trains) else "at least "  # behind until the end: all of it
    again = f", {total.steps_again} steps made again from scratch" if total.steps_again else ""
    return f", {count}" + (f", {at_least}{total.lost_s:.0f} s lost" if round(total.lost_s) else "") + again


def _twins(state: JobState) -> int:
    """Return how many incidents are the same failure as an earlier one, of which the run did not get beyond: a person repairs one thing."""
    first: dict[str, int] = {}
    twins: set[int] = set()
    for failed in state.run.failures:
        if not failed.is_over and failed.incident:
            earlier = first.setdefault(failed.fingerprint, failed.incident)
            twins |= {failed.incident} - {earlier}
    return len(twins)


def _changed(state: JobState) -> str:
    """Return what of the batch the last attempt trained with that is not as the command says."""
    now, knobs = dict(state.attempt.overrides), {knob.name: knob for knob in state.run.policy.knobs if knob.name in BATCH_KNOBS}
    rows = [(knob, now[name]) for name, knob in knobs.items() if now.get(name, knob.value) != knob.value]
    return ", ".join(f"{knob.how} {value}" + (f" instead of {knob.value}" if knob.value else "") for knob, value in rows)
