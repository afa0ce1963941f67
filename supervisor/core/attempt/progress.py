"""The steps of an attempt that runs, and the program that makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.core import budget
from supervisor.core.attempt import pointers, resumption, setups
from supervisor.core.failure import losses
from supervisor.core.model import Progress
from supervisor.core.nodes import starts
from supervisor.core.state import Stage
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.events import ProgressObserved
    from supervisor.core.state import JobState, Step


def on_progress_observed(state: JobState, event: ProgressObserved) -> Step:
    """Take the step over; the first one of a restarted attempt closes the incident.

    While an attempt is stopped, also because another node's rank failed, its ranks train on, up to their last step.
    """
    run, attempt, resume = state.run, state.attempt, state.attempt.resume
    follows = state.stage is Stage.TEARDOWN and bool(attempt.ended_by)
    is_last = follows or state.stage is Stage.STOPPING
    if state.stage not in {Stage.RUNNING, Stage.STARTING} and not is_last:
        return state, ()
    step, relative = event.step, False
    if step is None and event.steps_seen >= 0 and resume is not None and resume.shown_step is not None:
        step, relative = resume.shown_step + event.steps_seen, True
    elif step is None and event.steps_seen > 0:
        step, relative = event.steps_seen, True
    news: dict[str, Any] = {}  # of the run: it is copied once
    if step is not None and not relative and (run.high_water is None or step > run.high_water):
        news["high_water"] = step
        if run.failures and (run.high_water is not None or event.steps_seen > 0):
            passed, counts = step - run.policy.same_place_steps, not run.saved_high_water
            news["failures"] = budget.past_step(run.failures, step, passed, is_progress=counts)
    loaded = event.loaded or attempt.loaded
    if not run.ever_loaded and (loaded is not None or event.read is not None):
        news["ever_loaded"] = True
    first_step = attempt.first_step if event.first_step is None else event.first_step
    if first_step is None and step is not None and not relative:
        first_step = step - max(event.steps_seen, 0)
    # what shows how the attempt began is judged once, and again where it is another than before
    shown = (attempt.loaded, attempt.first_step, attempt.steps_seen > 0)
    is_same = attempt.began_as is not None and shown == (loaded, first_step, event.steps_seen > 0)
    progress = Progress(step, relative, event.phase)
    total = event.total or attempt.total
    attempt = replace(attempt, progress=progress, steps_seen=event.steps_seen, loaded=loaded, first_step=first_step, total=total)
    if attempt.trains and run.trained_in != attempt.number:
        news |= {"trained_in": attempt.number, "starts_with": setups.of(state), "vain_requeues": 0}
    if attempt.trains and not is_last:
        news["losses"] = losses.with_progress(run, event.t, event.step)
    state = replace(state, run=replace(run, **news) if news else run, attempt=attempt)
    state, reported = (state, ()) if is_last or is_same else _begun(state, event.t)
    state, compared = starts.compare(state, event.t)
    return state, (*reported, *compared)


def _begun(state: JobState, t: float) -> Step:
    """Report how the attempt began, and end it if its framework did not find this run's checkpoints."""
    state, reported = resumption.reported(state)
    state, actions = pointers.ended(state, t)
    return state, (*reported, *actions)
