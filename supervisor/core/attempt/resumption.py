"""How an attempt began, by what its ranks did, and never by what they were given.

Three facts show it; the first that is known decides:

1. A rank loaded the checkpoint that it was given, or another one of this job.
2. The step at which the training began (`Attempt.first_step`): the optimizer's own count, or the script's first heartbeat. Adam keeps its
   count across a resume: 41 after the first step says "resumed at 40", and 1 says "from scratch". Where nothing shows it on this node, the
   ranks of another one may have (`Attempt.peer_starts`): one rank may load for all, and broadcast the state.
3. A save of a lower step than that of the checkpoint given: the attempt did not continue from there, and overwrites newer ones.

Everything else is not confirmed: a checkpoint may be loaded by C++ code or from an open file, where supervise has no hook.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from supervisor.core.actions import AccuseCheckpoints, Alert, CloseIncident, KeepCopies, ReportResume
from supervisor.core.attempt import programs
from supervisor.core.failure import losses
from supervisor.core.model import Beginning, CheckpointRef
from supervisor.strategies.checkpoint import STEP_BACK

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.state import Attempt, JobState, Step

_NUMBER = re.compile(r"\d+")
#: A script may count its first step 0 or 1, and DCP makes one step of zeros to have a state to load into.
SCRATCH_STEP = 1
#: DCP makes one step of zeros before it loads, and a script may count on before it saves.
STEPS_APART = 1
_NOTHING_SEEN = "no rank was seen to load a checkpoint or to make a step"
#: The words of the report if no load was seen.
UNKNOWN_CHECKPOINT = "a checkpoint of its own"


def judged(state: JobState) -> ReportResume:
    """Return how this attempt began, as far as it is known now. It is called at every step until a resume is seen, so it is cheap."""
    attempt, resume = state.attempt, state.attempt.resume
    step: int | None = None
    path: str | None = None
    reason, is_new = "", False
    epoch: int | None = None
    named, counted = None, None
    if attempt.loaded is not None:
        known = loaded_checkpoint(state)
        step = attempt.first_step if known is None or known.shown_step is None else known.shown_step
        epoch = None if known is None or step is not None else known.epoch
        path, confirmed = attempt.loaded, True
        named = known.named if known is not None and known.named != step and step is not None else None
        counted = attempt.first_step if _differ(step, attempt.first_step) else None
    elif (first_step := _first_step(attempt)) is not None and first_step > SCRATCH_STEP:
        reached = resume is not None and (resume.step is None or first_step >= resume.step - 1)
        step, path, confirmed = first_step, resume.path if resume is not None and reached else UNKNOWN_CHECKPOINT, True
    else:
        reason = _from_scratch(state)
        confirmed = reason not in {"", _NOTHING_SEEN}
        if confirmed and resume is None:
            is_new = _loses_nothing(state)
            reason = "; ".join((*(() if is_new else (reason,)), *map(str, state.run.unused)))
    number = state.run.incident.number if state.run.incident else 0
    given = resume.path if resume is not None else None
    other = _another_step(state)
    if resume is not None and other is not None:
        return ReportResume(number, attempt.number, other, path, confirmed, given, given_step=resume.shown_step)
    return ReportResume(number, attempt.number, step, path, confirmed, given, reason, epoch, is_new, named, counted)


def _another_step(state: JobState) -> int | None:
    """Return the step of the checkpoint that was loaded, if it is not the one that was given, nor of its step; None where unknown.

    The step is that of its content, else of its name where the two are named alike.
    """
    given, loaded = state.attempt.resume, state.attempt.loaded
    if given is None or loaded is None or loaded == given.path or given.shown_step is None:
        return None
    known = loaded_checkpoint(state)
    step = None if known is None else known.shown_step
    if step is None and _NUMBER.sub("", loaded) == _NUMBER.sub("", given.path):
        numbers = _NUMBER.findall(loaded)
        step = int(numbers[-1]) if numbers else None
    return None if step is None or abs(step - given.shown_step) <= STEPS_APART else step


def _differ(step: int | None, first_step: int | None) -> bool:
    """Whether the ranks' count is another one than the checkpoint's: a counter begins anew with each resume, or counts micro-batches."""
    return step is not None and first_step is not None and abs(step - first_step) > STEPS_APART


def _first_step(attempt: Attempt) -> int | None:
    """Return the step at which the training began; where this node's ranks do not show it, from which those of another one continued."""
    if attempt.first_step is not None:
        return attempt.first_step
    seen = (first if loaded is None else loaded for _, first, loaded in attempt.peer_starts)
    return max((step for step in seen if step is not None), default=None)


def _loses_nothing(state: JobState) -> bool:
    """Whether a beginning from scratch loses nothing: no attempt of the run before it made a step or left a checkpoint."""
    run, earlier = state.run, state.attempt.number - 1
    untrained = len(run.failures) == earlier and all(failure.before_first_step for failure in run.failures)
    return not earlier or (untrained and run.newest is None and not run.unused)


def _from_scratch(state: JobState) -> str:
    """Return what shows that this attempt, of which no resume was seen, began from scratch; "" where nothing does."""
    given, first, low = state.attempt.resume, state.attempt.first_step, state.attempt.saved_steps.lowest
    if given is not None and given.step is not None and low is not None and low < given.step:
        return f"it saved step {low} after step {given.step} was given to it"
    if first is not None and (given is None or given.step is None or given.step > SCRATCH_STEP):
        return f"its training began at step {max(first, 0)}"
    if given is not None or programs.resumes_itself(state):
        return ""
    # no checkpoint is known that could have been loaded unseen
    return "no load of a checkpoint was seen" if state.attempt.steps_seen > 0 else _NOTHING_SEEN


def reached(state: JobState) -> int | None:
    """Return the greatest step that this run's ranks are known to have made or saved, for its next attempt; None if none is known.

    Steps that were only counted since an attempt began count from 0 where no load of a checkpoint of this job was seen.
    """
    run, attempt = state.run, state.attempt
    counted = attempt.steps_seen if attempt.steps_seen > 0 and attempt.loaded is None and not run.begun_from else None
    return max((step for step in (run.reached, run.high_water, attempt.saved_steps.highest, counted) if step is not None), default=None)


def is_shown(state: JobState) -> bool:
    """Return whether anything shows that this attempt continued from the checkpoint that it was given, or got beyond it."""
    given, high = state.attempt.resume, state.attempt.saved_steps.highest
    beyond = given is not None and given.step is not None and high is not None and high > given.step
    return judged(state).began is Beginning.RESUMED or beyond


def reported(state: JobState, *, over: bool = False) -> Step:
    """Report how the attempt began, once it trains or is `over`, and again where a missing fact is known now.

    A run's first attempt that was given nothing and loaded nothing may begin from scratch: this is reported once, without an alert. The
    incident of what came before this attempt is over with it; one of its own end is not.
    """
    known = state.attempt.began_as
    if (not state.attempt.trains and not over) or known is Beginning.RESUMED:
        return state, ()
    report = judged(state)
    if known is not None and report.began not in {Beginning.RESUMED, *({Beginning.FROM_SCRATCH} if known is Beginning.UNCONFIRMED else ())}:
        return state, ()
    number, incident = state.attempt.number, state.run.incident
    closing: tuple[Action, ...] = ()
    if incident is not None and incident.attempt < number:
        closing = (CloseIncident(incident.number, number, "resolved", state.attempt.progress.step),)
        incident = None
    cost = losses.from_scratch(state.run, number) if report.began is Beginning.FROM_SCRATCH else state.run.losses
    state = state.with_attempt(began_as=report.began).with_run(incident=incident, losses=cost)
    if number == 1 and report.resume_from is None and report.path is None:
        kept = (KeepCopies(number),) if state.run.unfinished_before else ()
        return state, closing if report.began is Beginning.UNCONFIRMED else (report, *kept, *closing)
    actions: tuple[Action, ...] = (report, *_accused(state, known))
    newest = state.run.newest
    lost = (
        report.resume_from
        or (newest.path if newest is not None else "")
        or next((unused_checkpoints.newest for unused_checkpoints in state.run.unused), "")
    )
    # not confirmed, where a hook saw steps and no load: it may turn out only when the attempt has saved over its checkpoint
    unsure = report.began is Beginning.UNCONFIRMED and state.attempt.steps_seen > 0
    if report.began is Beginning.FROM_SCRATCH or unsure or report.given_step is not None:
        actions = (*actions, KeepCopies(number))
    if report.began is Beginning.FROM_SCRATCH and lost:
        actions = (*actions, Alert("started_from_scratch", number, f"attempt {number} started from scratch, although {lost} is there"))
    return state, (*actions, *closing)


def closed_by_saves(state: JobState) -> Step:
    """Close the incident of what came before this attempt, whose steps nobody sees: once it saved two later ones than it was given.

    One save alone may be of the handler of its next failure, or the given checkpoint by another name. How it began, saves do not show.
    """
    attempt, incident, given, saved = state.attempt, state.run.incident, state.attempt.resume, state.attempt.saved_steps
    if incident is None or incident.attempt >= attempt.number or given is None or given.step is None or given.is_index:
        return state, ()
    if saved.lowest is None or saved.highest is None or not given.step + STEPS_APART < saved.lowest < saved.highest:
        return state, ()
    return state.with_run(incident=None), (CloseIncident(incident.number, attempt.number, "resolved", saved.highest),)


def _accused(state: JobState, known: Beginning | None) -> tuple[Action, ...]:
    """Return the order to keep what this run stepped back from out of use for later runs, too: this attempt trains from another one."""
    run, attempt = state.run, state.attempt
    back = next((failure for failure in reversed(run.failures) if failure.ladder_step == STEP_BACK), None)
    if known is not None or not attempt.trains or attempt.resume is None or not run.rejected or back is None:
        return ()
    reason = f"attempt {back.attempt} stepped back from it ({back.cause}), and attempt {attempt.number} trained from {attempt.resume.path}"
    return (AccuseCheckpoints(attempt.number, reason),)


def with_save(state: JobState, save: CheckpointRef) -> JobState:
    """Return the state that knows a checkpoint of this attempt's own.

    Its step counts where it compares with that of the one given: `best-epoch-3.pt` and `step-40.pt` do not count the same.
    """
    alike = state.attempt.resume is None or _NUMBER.sub("", save.path) == _NUMBER.sub("", state.attempt.resume.path)
    saved_steps = state.attempt.saved_steps.including(save.step if alike else None)
    return state.with_attempt(saved_steps=saved_steps)


def loaded_checkpoint(state: JobState) -> CheckpointRef | None:
    """Return the checkpoint that the ranks were seen to load, None where it is not known."""
    # what a script loads by itself for the first time was unused when the attempt began
    unused = (
        CheckpointRef(unused_checkpoints.newest, unused_checkpoints.step, "", unused_checkpoints.epoch)
        for unused_checkpoints in state.run.unused
    )
    known = (*((state.attempt.resume,) if state.attempt.resume is not None else ()), *state.run.verified, *unused)
    return next((checkpoint for checkpoint in known if checkpoint.path == state.attempt.loaded), None)
