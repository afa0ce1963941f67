"""The cost of a run's failures: how many incidents, and how long until the training reached its earlier step again.

A failure at step 120 after a checkpoint of step 80 costs the restart and the forty steps that are made again. So the time from the failure
until step 120 is reached once more is lost, and nothing else. Progress is reported in intervals: the moment is interpolated between two
reports. If no absolute step is known, the first progress is treated as that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.state import JobState, Losses, Run


def with_incident(losses: Losses, t: float) -> Losses:
    """Return the losses with one more incident, which opened at `t`. A training that is still behind counts from the earlier one."""
    since_t = t if losses.since_t is None else losses.since_t
    return replace(losses, incidents=losses.incidents + 1, since_t=since_t, seen_t=t, seen_step=None)


def since(losses: Losses, t: float) -> Losses:
    """Return the losses if the attempt was over at `t`, before the newest incident opened: its supervisor had died."""
    return replace(losses, since_t=t if losses.since_t is None else min(t, losses.since_t))


def withdrawn(losses: Losses, opened_t: float) -> Losses:
    """Return the losses without the newest incident, which opened at `opened_t`: nothing had failed.

    A training that was already behind, since an earlier incident, is still behind.
    """
    since_t = losses.since_t if losses.since_t is not None and losses.since_t < opened_t else None
    return replace(losses, incidents=losses.incidents - 1, since_t=since_t, seen_step=None)


def with_progress(run: Run, t: float, step: int | None) -> Losses:
    """Return the losses after progress of an attempt that runs, at the absolute `step`; `run` is still as it was before."""
    losses, mark = run.losses, run.high_water
    if step is not None and mark is not None and step < mark:
        return losses if losses.since_t is None else replace(losses, seen_t=t, seen_step=step)
    if step is None or mark is None or losses.seen_step is None:
        return until(losses, t)
    share = (mark - losses.seen_step) / (step - losses.seen_step)
    return until(losses, losses.seen_t + share * (t - losses.seen_t))


def from_scratch(run: Run, attempt: int) -> Losses:
    """Return the losses once an attempt of the run is known to have begun from scratch; steps that nobody saw are not counted."""
    losses, reached = run.losses, run.reached or 0
    if not reached or attempt in losses.scratch:
        return losses
    return replace(losses, scratch=(*losses.scratch, attempt), steps_again=losses.steps_again + reached)


def until(losses: Losses, t: float) -> Losses:
    """Return the losses if the training reached its earlier step again at `t`, or if the run ended then."""
    if losses.since_t is None:
        return losses
    return replace(losses, lost_s=losses.lost_s + max(0.0, t - losses.since_t), since_t=None, seen_step=None)


def total(state: JobState) -> Losses:
    """Return the losses of a run that has ended.

    If no step of the last attempt was ever seen, the loss ends with the start of its ranks: their training cannot be compared.
    """
    attempt, losses = state.attempt, state.run.losses
    over_t = attempt.started_t if not attempt.trains and state.run.exit_code == 0 else attempt.over_t
    return losses if over_t is None else until(losses, over_t)
