"""The checkpoint that an attempt begins from: what the search found, what of it is used, and when none may be."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from supervisor.core.actions import PrintMessage, SetTimer
from supervisor.core.attempt import finish, known_checkpoints, programs, start
from supervisor.core.model import Cause, FailureVerdict, Plan, PlanKind
from supervisor.core.nodes import gathering
from supervisor.core.state import Stage
from supervisor.core.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.core.actions import Action
    from supervisor.core.events import CheckpointSelected, SelectionMoved
    from supervisor.core.model import CheckpointRef
    from supervisor.core.state import JobState, Step

TRUST_HINT = "if you wrote them, --set checkpoints.trusted=true accepts calls of your own; else move them away, and start again"
PUT_BACK_HINT = "put the kept copy back"
_MOST_NAMED: Final = 3
_NUMBER = re.compile(r"\d+")


def on_checkpoint_selected(state: JobState, event: CheckpointSelected) -> Step:
    """Begin from the chosen one. If none of those that we hand over is good any more, stop (65): a person may begin from scratch.

    If the script itself chooses among discovered ones, the facts about them stop nothing. Several nodes have chosen together.
    """
    shared: tuple[Action, ...] = ()
    if event.agreement:
        agreement = gathering.take_agreement(state, event)
        state, shared = agreement.state, agreement.actions
        if not agreement.begins:
            return state, shared
    elif state.stage is not Stage.SELECTING:
        return state, ()
    state, actions = _begin(state, event)
    return state, (*shared, *actions)


def _begin(state: JobState, event: CheckpointSelected) -> Step:
    refused = sum(map(len, (event.torn, event.dangerous, event.refused, event.not_finite)))
    state = state.with_run(unused=event.unused, without_tracker=event.without_tracker, known_good=max(event.n_found - refused, 0))
    chooses_itself = programs.resumes_itself(state) or not state.run.policy.checkpoints_declared
    left = "left where it is" if chooses_itself else "left where it is and not used"
    done = {path for path, _ in event.repaired}
    torn = [(path, why) for path, why in event.torn if path not in done]
    notes: tuple[Action, ...] = tuple(PrintMessage("warning", f"{path}: {change}") for path, change in event.repaired)
    notes += tuple(PrintMessage("warning", f"checkpoint not resumed from: {path}: {why}") for path, why in event.not_finite)
    notes += tuple(_passed_over(state, event))
    notes += tuple(PrintMessage("warning", note) for note in event.notes)
    notes += tuple(PrintMessage("warning", f"checkpoint {left}: {path}: {why}") for path, why in torn)
    unsafe = "left to the script" if chooses_itself else "not used"
    notes += tuple(PrintMessage("warning", f"checkpoint {unsafe}: {path}: {why}") for path, why in event.dangerous)
    stop = _torn_in_use(state, event)
    if stop is not None:
        state, actions = finish.stop_for(state, event.t, *stop)
        return state, (*notes, *actions)
    repeats = event.chosen is not None and state.attempt.resume is not None and not state.attempt.awaits_agreement
    untaken = start.surely_refused(state, event.t) if repeats else None
    if untaken is not None:
        verdict = state.run.open_verdict or FailureVerdict(Cause.NONE, 1.0, untaken.reason, "scratch:refused")
        return finish.stop_for(state, event.t, verdict, untaken)
    if event.chosen is not None:
        notes += _step_back_cost(state, event.chosen)
        state, actions = start.begin_on_this_node(_gained(state, event.chosen, event), event.t, event.chosen)
        return state, (*notes, *actions)
    if event.silent:
        stopped, actions = finish.stop_for(state, event.t, *_none_read(state, event))
        return stopped, (*notes, *actions)
    if _has_lost_all(state, event):
        stopped, actions = finish.stop_for(state, event.t, *_none_usable(state, event))
        return stopped, (*notes, *actions)
    state, actions = start.begin_from_scratch(state, event.t, has_saved=event.has_saved)
    return state, (*notes, *actions)


def _passed_over(state: JobState, event: CheckpointSelected) -> Iterator[PrintMessage]:
    """Name the checkpoints that may be whole and were not taken, though they are newer: the steps up to them are made again."""
    gets_from_us = not programs.resumes_itself(state) and (state.run.policy.checkpoints_declared or programs.resume_knob(state) is not None)
    rows = dict(event.silent) | (dict(event.passed_over) if gets_from_us else {})
    for path, why in tuple(rows.items())[:_MOST_NAMED]:
        yield PrintMessage("warning", f"checkpoint passed over: {path}: {why}")
    if len(rows) > _MOST_NAMED:
        place = shlex.quote(next(iter(rows)).rpartition("/")[0])
        more = f"{len(rows) - _MOST_NAMED} more: supervise checkpoints latest {place}"
        yield PrintMessage("warning", f"checkpoints passed over: {more}")


def on_selection_moved(state: JobState, _event: SelectionMoved) -> Step:
    """Wait on: a read has no limit of time while bytes come."""
    if state.stage is not Stage.SELECTING and not (state.attempt.awaits_agreement and state.attempt.members):
        return state, ()
    state = state.entering(state.stage)
    return state, (SetTimer("select", state.token, state.run.policy.select_silence_s),)


def on_select_overdue(state: JobState, t: float) -> Step:
    """The place of the checkpoints does not answer, or a node of several: neither resuming nor starting from scratch can be justified."""
    silence_s, verdict = state.run.policy.select_silence_s, state.run.open_verdict
    if state.stage is Stage.SELECTING:
        summary = f"the checkpoints could not be read: nothing came from their disk for {silence_s:.0f} s"
    elif state.attempt.awaits_agreement:
        summary, verdict = f"the nodes did not agree on a checkpoint, and nothing moved for {silence_s:.0f} s", None
    else:
        return state, ()
    verdict = verdict or FailureVerdict(Cause.IO_ERROR, 0.8, summary, "select:overdue", transient=True)
    return finish.stop_for(state, t, verdict, Plan(PlanKind.STOP, summary, "the scheduler's requeue continues this run", "beginning", 75))


def _has_lost_all(state: JobState, event: CheckpointSelected) -> bool:
    """Whether checkpoints of this training are not good any more, and the script gets one from us alone: it would begin from scratch.

    An option that we append, with a path or as a switch, is given only with a checkpoint. A torn one alone may be that of a first save; a
    whole one was saved before if one was verified, or a copy is kept. An unread or
    unverified checkpoint, or one that could run code, may be whole.
    """
    if state.run.policy.checkpoints_declared:
        return bool(event.n_found) or state.run.newest is not None
    if programs.resume_knob(state) is None or programs.resumes_itself(state) or not event.n_found:
        return False
    return bool(event.refused or event.dangerous) or (bool(event.torn) and (state.run.newest is not None or bool(event.kept_copies)))


def _none_read(state: JobState, event: CheckpointSelected) -> tuple[FailureVerdict, Plan]:
    """Return the stop where checkpoints may be whole, and their disk gives no byte: neither resuming nor starting from scratch is right."""
    path, why = event.silent[0]
    more = f" (and {len(event.silent) - 1} more)" if len(event.silent) > 1 else ""
    summary = f"no checkpoint could be read: {path}: {why}{more}"[:600]
    verdict = state.run.open_verdict or FailureVerdict(Cause.IO_ERROR, 0.9, summary, "select:silent", transient=True)
    hint = f"see whether the disk answers: head -c 1 {path}; where a scheduler requeues the job, that start continues with this run"
    return verdict, Plan(PlanKind.STOP, summary, hint, "beginning", 75)


def _none_usable(state: JobState, event: CheckpointSelected) -> tuple[FailureVerdict, Plan]:
    """Return the stop where the script gets its checkpoints from us, and none of them can be resumed from."""
    listed = "; ".join(f"{path}: {why}" for path, why in (*event.dangerous, *event.torn, *event.refused))
    notes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    if event.dangerous:  # these are whole, and a person can confirm that they are their own
        summary = f"no checkpoint was used ({event.n_found} found), because loading it could run code: {listed}"[:600]
        verdict, hint = FailureVerdict(Cause.NONE, 1.0, summary, "checkpoint:dangerous"), TRUST_HINT
    else:
        listed = listed or (state.run.newest.path if state.run.newest else "")
        summary = f"no checkpoint is verified good any more ({event.n_found} found): {listed}"[:600]
        verdict = FailureVerdict(Cause.CHECKPOINT_CORRUPT, 0.95, summary, "checkpoint_corrupt:none-good")
        knob, notes = programs.resume_knob(state), _put_back(event, *(path for path, _ in event.torn))
        knows_copy = bool(notes)
        notes = (*_first_failure(state), *notes)
        hint = "give the path of a good one as --checkpoints, or move the bad ones away"
        if knows_copy:
            hint = PUT_BACK_HINT
        elif event.refused and not event.torn:  # they may be whole: away with them would be a start from scratch
            place = shlex.quote(event.refused[0][0])
            hint = f"see why none could be read or proven, for they may be whole: supervise checkpoints verify {place}"
        if knob is not None and not knob.seen:
            options = "--set", f"knobs.program={knob.by}"
            hint += f", then start it again with {' '.join(options)}"
        if event.refused and not event.torn:
            hint += "; where no format can be verified, let the script find its checkpoint by itself (--resumes-itself)"
    why = "starting from scratch would throw the training away"
    return verdict, Plan(PlanKind.STOP, why, hint, "beginning", 65, notes=notes, options=options)


def _first_failure(state: JobState) -> tuple[str, ...]:
    """Return a note of the failure after which a checkpoint was sought: it is to be repaired too."""
    verdict = state.run.open_verdict
    facts = {} if verdict is None else dict(verdict.facts)
    at = f" at {facts['file']}:{facts['line']}" if facts.get("file") and facts.get("line") else ""
    return () if verdict is None else (f"the job had failed before that{at}: {verdict.summary}",)


def _torn_in_use(state: JobState, event: CheckpointSelected) -> tuple[FailureVerdict, Plan] | None:
    """Return the stop where the script chooses its checkpoint itself, and the last attempt died of loading a torn one that stays there."""
    verdict = state.run.open_verdict
    handed_over = state.run.policy.checkpoints_declared and not programs.resumes_itself(state)
    if verdict is None or verdict.cause is not Cause.CHECKPOINT_CORRUPT or not event.torn_in_use or handed_over:
        return None
    whole = event.chosen.path if event.chosen is not None else next((unused_checkpoints.newest for unused_checkpoints in event.unused), "")
    path, torn = event.torn_in_use, _name(event.torn_in_use)
    why = f"{path} is torn, and the script loads it: another attempt would meet the same error"
    notes = _put_back(event, path)
    away = (f"this moves it to where the script does not look: {event.advised_move}",) if event.advised_move else ()
    if notes:
        hint = PUT_BACK_HINT
    elif _NUMBER.sub("", whole) == _NUMBER.sub("", path):  # the script takes the one of the greatest number
        notes = (f"{torn} is torn; {_name(whole)} is whole: {event.advised_move}",)
        hint = "move the torn one away"
    elif whole:  # it may be another part of the same save: never a copy of one over the other
        hint = (
            f"{torn} is torn; {_name(whole)} is whole: --checkpoints and --resume-args hand it over if it is a save of its own; "
            "else move the torn save away"
        )
        notes = away
    else:
        hint = f"{torn} is torn, and no whole one is known: move it away"
        notes = away
    return verdict, Plan(PlanKind.STOP, why, hint, "beginning", 65, notes=notes)


def _put_back(event: CheckpointSelected, *torn: str) -> tuple[str, ...]:
    """Return the command that puts a kept copy in the place of the first of these torn ones that has one; nothing if none has."""
    path, copy = next((row for row in event.kept_copies if row[0] in torn), ("", ""))
    return (f"a copy of {_name(path)} is kept: {shlex.join(['cp', '-p', copy, path])}",) if copy else ()


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _step_back_cost(state: JobState, chosen: CheckpointRef) -> tuple[Action, ...]:
    """Report what a step back costs, before it is paid."""
    plan = state.run.incident.plan if state.run.incident is not None else None
    if plan is None or not plan.rejected:
        return ()
    world = state.attempt.world_size
    step = state.attempt.progress.step
    reached = step if step is not None else state.run.untrusted_through_step  # it died while it loaded the suspect
    begins = chosen.shown_step
    if begins is None or reached is None:
        return (
            PrintMessage("info", f"goes back to {chosen.path}: what that costs is not known, because the steps of the checkpoints are not"),
        )
    again = max(reached - begins, 0)
    ranks = f" × {world} ranks = {again * world} rank-steps" if world else ""  # noqa: RUF001 (the sign)
    return (PrintMessage("info", f"goes back to {chosen.path}: costs {again} steps{ranks}, done again from step {begins}"),)


def _gained(state: JobState, chosen: CheckpointRef, event: CheckpointSelected) -> JobState:
    """Take over a newer checkpoint than was known: the failures of attempts before the one that wrote it no longer count.

    A checkpoint of another training is not progress: else this run's own saves would have to lie beyond it to count.
    """
    if chosen.step is not None and not event.is_foreign:
        last = state.attempt.number - state.attempt.awaits_agreement  # of several nodes the number is the next attempt's already
        state = replace(state, run=known_checkpoints.with_saved(state.run, chosen.step, last))
    return known_checkpoints.with_selected(state.with_run(newest=chosen), chosen, event.older)
