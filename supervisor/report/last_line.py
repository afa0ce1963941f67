"""The last line of a run: how far it came, what its failures cost, and what is left to resume from. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core import losses, planning
from supervisor.report.wording import position_text, step_text

if TYPE_CHECKING:
    from supervisor.core.model import CheckpointRef
    from supervisor.core.state import JobState


def last_line(state: JobState, code: int, newest: CheckpointRef | None, *, all_verified: bool = True, mirrored: str = "") -> str:
    """Return the last line of a run: how far it came, what failed on the way and what that cost, and its newest good checkpoint.

    If it was stopped, also whether the same command goes on from that. newest: as found once no rank was left. all_verified: False if a
    later save was not verified in time. mirrored: how many of its saves the mirrors hold, "" without a mirror.
    """
    stopped = state.run.stop is not None and code != 0
    if stopped and not state.attempt.number:
        return "stopped before the first attempt: the command was not started"
    how = "the command left with 0" if state.run.hidden else "done" if code == 0 else "stopped" if stopped else "given up"
    reached = [f"{how}{_reached(state)}{_cost(state)}", *([f"but {state.run.hidden}"] if state.run.hidden else [])]
    where = "" if newest is None else named(newest)
    if newest is not None and code == 0 and all_verified:
        reached.append(f"the newest checkpoint is verified: {where}")
    elif newest is not None:
        reached.append(f"the newest verified checkpoint is {where}")
    elif stopped or not all_verified:
        reached.append("no checkpoint of this run was verified")
    if stopped and newest is not None:
        resumes = planning.resumes_at_next_start(state, code)
        reached.append(f"the same command {'resumes from it' if resumes else 'resumes only if the script does so by itself'}")
    if not all_verified:
        reached.append("the last save was not verified in time: `supervise checkpoints verify PATH` checks it")
    return "; ".join([*reached, *([mirrored] if mirrored else [])])


def named(found: CheckpointRef) -> str:
    """Return a checkpoint's path, with its step or epoch."""
    position = position_text(found.shown_step, found.epoch)
    return f"{found.path} ({position})" if position else found.path


def _reached(state: JobState) -> str:
    progress = state.attempt.progress
    if progress.step is None or (progress.relative and state.attempt.steps_seen < 1):  # then it is where the attempt began
        return " at step unknown" if state.run.stop is not None and state.run.exit_code else ""
    total = state.attempt.total
    short = f" of {total}" if state.run.exit_code == 0 and total is not None and not progress.relative and progress.step < total else ""
    return f" at {step_text(progress.step, relative=progress.relative)}{short}"


def _cost(state: JobState) -> str:
    """Return how many incidents there were, and the time that they cost; at least that, where no absolute step shows what is made again."""
    found, attempt = losses.total(state), state.attempt
    if not found.incidents:
        return ", no incident"
    count = "1 incident" if found.incidents == 1 else f"{found.incidents} incidents"
    counts_all = attempt.progress.step is not None and not attempt.progress.relative
    at_least = "" if counts_all or (state.run.exit_code != 0 and not attempt.trains) else "at least "  # behind until the end: all of it
    return f", {count}" + (f", {at_least}{found.lost_s:.0f} s lost" if round(found.lost_s) else "")
