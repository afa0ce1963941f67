"""A request to stop, by a person or a scheduler. signals.py has what each signal means and leads to; here it is carried out.

On all but INT a script that polls worker.should_save is asked to save first:

    RequestSave ─> Saved, or the ranks' own end ─────────────┐
        │ the time is over, less what stopping takes         v
        └──────────────────────────────────> StopRanks ─> AttemptEnded ─> Finish (75 where it saved, or was given notice)

If a rank fails meanwhile, the wait ends and a card says why. After any request no rank is started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.engine import classify
from supervisor.classify.exits import signal_name, was_asked
from supervisor.core import deadlines, signals
from supervisor.core.actions import (
    SIGTERM,
    CloseIncident,
    CollectEvidence,
    EndLauncher,
    FindSave,
    FindUnsaved,
    Finish,
    PrintMessage,
    ReportDecision,
    RequestSave,
    SetTimer,
    StopRanks,
)
from supervisor.core.attempt import finish, programs
from supervisor.core.events import StopRequested, TimeLeft
from supervisor.core.model import Plan, PlanKind
from supervisor.core.nodes import admission
from supervisor.core.signals import Meaning, SignalEffect
from supervisor.core.state import Stage, StopRequest
from supervisor.core.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.core.actions import (
        Action,
    )
    from supervisor.core.events import Saved, SaveOnRequestSeen, UnsavedFound
    from supervisor.core.model import CheckpointRef, Evidence, RankExit
    from supervisor.core.state import JobState, Step

#: The time that ranks get after a second signal, until KILL.
HURRY_GRACE_S = 2.0
#: The share of the time left that is reserved for TERM to KILL, and as much for the supervisor's own end, at most.
RESERVED_SHARE = 0.2
#: How long the answer to "how much time is left" is awaited; a tool that takes longer is ended (supervisor/run/kill_deadline.py).
ANSWER_S = 2.0
#: With less than this a save is not worth beginning.
LEAST_SAVE_S = 1.0
#: So long before the time for a save is over, ranks that have not saved are examined: they are still where they were all the time.
LOOK_S = 4.0
#: The least time for a search for a save, and what the supervisor reserves of the time left for its own end.
LEAST_SEARCH_S = 1.0
OUR_END_S = 3.0


def _with_stop(state: JobState, stop: StopRequest) -> JobState:
    return state.with_run(stop=stop)


def on_stop_requested(state: JobState, event: StopRequested) -> Step:
    """Do what the signal leads to (signals.EFFECTS). One that comes twice is one request."""
    meaning, stop = signals.meaning_of(event.signum), state.run.stop
    received = {} if stop is None else dict(stop.received)
    if meaning in received and event.t - received[meaning] < signals.BURST_S:
        return state, ()
    effect = signals.effect_of(state, event.signum)
    if stop is None:
        joining = state.attempt.admission
        is_asked = meaning is not Meaning.PERSON and joining is not None and joining.save_requested
        stop = StopRequest(event.signum, 1, event.t, event.left_s, event.t, save_requested=is_asked)
        state = state.entering(Stage.STOPPING)
    elif meaning is Meaning.PERSON or (meaning is Meaning.NOTICE and signals.meaning_of(stop.signum) is Meaning.END):
        stop = replace(stop, signum=event.signum)
    state = _with_stop(state, replace(stop, received=tuple((received | {meaning: event.t}).items())))
    return _CARRIED_OUT[effect](state, event)


def _finish(state: JobState, _event: StopRequested) -> Step:
    return finish_stopped(state)


def _give_up_search(state: JobState, _event: StopRequested) -> Step:
    """End now: only the reason of a failure, or the search for a save, was awaited."""
    stop = _stop_of(state)
    state = state.with_attempt(evidence=state.attempt.evidence or ())
    return finish_stopped(_with_stop(state, replace(stop, save_search=True, save_search_done=True)))


def _stop_now(state: JobState, event: StopRequested) -> Step:
    return _stop(state.entering(Stage.STOPPING), _sent(event.signum), _grace(state, event.left_s))


def _stop_soon(state: JobState, event: StopRequested) -> Step:
    return _stop(state, _sent(event.signum), min(state.run.policy.stop.grace_s, _grace(state, event.left_s)))


def _use_time(state: JobState, event: StopRequested) -> Step:
    return _in_time(state, event, event.signum)


def _count_anew(state: JobState, event: StopRequested) -> Step:
    """The announced end has come. Ranks that were asked to end already have their time."""
    if not _stop_of(state).ranks_not_yet_signalled:
        return state, ()
    return _in_time(state.entering(Stage.STOPPING), event, event.signum)


def _hurry(state: JobState, event: StopRequested) -> Step:
    """The end is asked for once more: TERM and KILL within seconds, and the time after that KILL."""
    stop = _stop_of(state)
    stop = replace(stop, count=stop.count + 1, ranks_not_yet_signalled=False)
    state = _with_stop(state, stop).entering(Stage.STOPPING)
    if stop.count > 2:  # noqa: PLR2004 (the second signal)
        return state, (EndLauncher(state.attempt.number, "a third signal"),)
    hurry = StopRanks(state.attempt.number, SIGTERM, HURRY_GRACE_S, "hurry")
    message = PrintMessage("warning", f"{signal_name(event.signum)}: ranks are killed in {HURRY_GRACE_S:.0f} s; once more kills them now")
    return state, (hurry, message, SetTimer("stop", state.token, HURRY_GRACE_S + deadlines.TEARDOWN_MARGIN_S))


def _go_on(state: JobState, _event: StopRequested) -> Step:
    return state, ()


_CARRIED_OUT: dict[SignalEffect, Callable[[JobState, StopRequested], Step]] = {
    SignalEffect.FINISH: _finish,
    SignalEffect.GIVE_UP_SEARCH: _give_up_search,
    SignalEffect.STOP: _stop_now,
    SignalEffect.STOP_SOON: _stop_soon,
    SignalEffect.SAVE: _use_time,
    SignalEffect.TRAIN_ON: _use_time,
    SignalEffect.ANNOUNCED: _count_anew,
    SignalEffect.HURRY: _hurry,
    SignalEffect.NOTHING: _go_on,
}


def _stop_of(state: JobState) -> StopRequest:
    """Return the request of a state that has one: each caller is of STOPPING."""
    stop = state.run.stop
    assert stop is not None  # noqa: S101 (for the type checker)
    return stop


def _in_time(state: JobState, event: StopRequested | TimeLeft, signum: int) -> Step:
    """Use the time that is left: for a save where the script asks, after a notice for training on; then stop the ranks."""
    stop, t, left_s = _stop_of(state), event.t, event.left_s
    stop = replace(stop, left_s=left_s, left_from_t=t, ranks_not_yet_signalled=False)
    state = _with_stop(state, stop)
    if isinstance(event, StopRequested) and event.time_left_follows:
        return _until_it_is_known(state)
    if state.attempt.save_on_request and signum != signals.SIGINT:
        return _save(state, t)
    if signals.is_notice(signum) and left_s is not None:
        wait_s = left_s - _our_end(left_s) - _grace(state, left_s)
        if wait_s >= LEAST_SAVE_S:
            state = _with_stop(state, replace(stop, ranks_not_yet_signalled=True))
            text = f"{signal_name(signum)}: {left_s:.0f} s are left; the ranks train on for {wait_s:.0f} s and are asked to end then"
            return state, (PrintMessage("info", text), SetTimer("wait", state.token, wait_s))
    return _stop(state, _sent(signum), _grace(state, left_s))


def _until_it_is_known(state: JobState) -> Step:
    """Ask the ranks to save at once. Let them run until the time that is left is known: schedulers signal them as well."""
    stop = _stop_of(state)
    asks = state.attempt.save_on_request and not stop.save_requested
    state = _with_stop(state, replace(stop, save_requested=stop.save_requested or asks, ranks_not_yet_signalled=True))
    request = (RequestSave(state.attempt.number, state.run.policy.stop.deadline_s),) if asks else ()
    return state, (*request, SetTimer("left", state.token, ANSWER_S))


def on_time_left(state: JobState, event: TimeLeft) -> Step:
    """Count from now, whether the time that is left is known or not. If the ranks were asked to end already, it is too late for that.

    The time until the end that a notice announces is void once that end is asked for.
    """
    stop = state.run.stop
    if stop is None or not stop.ranks_not_yet_signalled or state.attempt.ended:
        return state, ()
    is_notice, end_asked = signals.is_notice(stop.signum), signals.asks_end(stop)
    if event.signum and signals.is_notice(event.signum) and end_asked:
        return state, ()
    return _in_time(state.entering(Stage.STOPPING), event, SIGTERM if end_asked and is_notice else stop.signum)


def on_left_overdue(state: JobState, t: float) -> Step:
    """The tool that knows how much time is left does not answer."""
    return on_time_left(state, TimeLeft(t, None))


def _save(state: JobState, t: float) -> Step:
    """Ask the ranks to save, and let them run until they have saved or the time is over."""
    stop = _stop_of(state)
    left_s = (state.run.policy.stop.deadline_s if stop.left_s is None else stop.left_s) - (t - stop.left_from_t)
    for_it_s = left_s - _our_end(left_s) - min(state.run.policy.stop.grace_s, RESERVED_SHARE * left_s)
    if for_it_s < LEAST_SAVE_S or state.attempt.saved:  # they saved for nodes that ask to join: they answer once
        return _stop(state, _sent(stop.signum), _grace(state, left_s))
    request = () if stop.save_requested else (RequestSave(state.attempt.number, for_it_s),)
    state = _with_stop(state, replace(stop, save_requested=True, ranks_not_yet_signalled=True))
    text = f"{signal_name(stop.signum)}: ranks are asked to save, and to end when they have saved, or in {for_it_s:.0f} s"
    look_s = for_it_s - min(LOOK_S, for_it_s / 2)
    return state, (*request, PrintMessage("info", text), SetTimer("save", state.token, for_it_s), SetTimer("unsaved", state.token, look_s))


def _stop(state: JobState, signum: int, grace_s: float) -> Step:
    """Ask the ranks to end, and kill them after `grace_s`."""
    stop = _stop_of(state)
    state = _with_stop(state, replace(stop, ranks_not_yet_signalled=False))
    name = signal_name(stop.signum)
    hurry = "send it again to hurry, a third time to kill them now"
    if signals.is_notice(stop.signum):  # a further notice shortens nothing
        hurry = "SIGINT hurries them, and a second SIGINT kills them now"
    message = PrintMessage("info", f"{name}: ranks are asked to end, killed in {grace_s:.0f} s; {hurry}")
    timer = SetTimer("stop", state.token, grace_s + deadlines.TEARDOWN_MARGIN_S)
    return state, (StopRanks(state.attempt.number, signum, grace_s, "stop"), message, timer)


def _sent(signum: int) -> int:
    """Return the signal for the ranks: a scheduler's notice would kill a script that does not handle it."""
    return SIGTERM if signals.is_notice(signum) else signum


def _our_end(left_s: float) -> float:
    return min(OUR_END_S, RESERVED_SHARE * left_s)


def _grace(state: JobState, left_s: float | None) -> float:
    """Return the time that the ranks get to end by themselves: the stop deadline, or the rest of it."""
    deadline_s = state.run.policy.stop.deadline_s
    return deadline_s if left_s is None else max(0.0, min(deadline_s, left_s - _our_end(left_s)))


def on_save_on_request_seen(state: JobState, event: SaveOnRequestSeen) -> Step:
    """The script saves on request. If this is first seen while a notice runs, it is asked at once."""
    state = state.with_attempt(save_on_request=True)
    stop = state.run.stop
    if stop is None:
        return admission.request_save(state)
    if not stop.ranks_not_yet_signalled or stop.save_requested or stop.signum == signals.SIGINT:
        return state, ()
    return _save(state.entering(state.stage), event.t)


def on_saved(state: JobState, event: Saved) -> Step:
    """The requested checkpoint is saved: stop the ranks."""
    stop = state.run.stop
    if stop is None:
        return admission.take_save(state)
    if not stop.save_requested:
        return state, ()
    state = state.with_attempt(saved=True)
    if not stop.ranks_not_yet_signalled or state.attempt.ended:
        return state, ()
    left_s = stop.left_s if stop.left_s is None else stop.left_s - (event.t - stop.left_from_t)
    state = state.entering(state.stage)
    state, actions = _stop(state, SIGTERM, min(state.run.policy.stop.grace_s, _grace(state, left_s)))
    return state, (PrintMessage("info", "the requested checkpoint is saved"), *actions)


def take_save(state: JobState, save: CheckpointRef | None) -> Step:
    """The ranks reported no save, and the disk was searched for one: use its newest checkpoint."""
    stop = state.run.stop
    if stop is None or not stop.save_search:
        return state, ()
    state = state.with_attempt(saved=state.attempt.saved or save is not None)
    return finish_stopped(_with_stop(state, replace(stop, save_search_done=True)))


def ends_wait(state: JobState, death: RankExit) -> bool:
    """Whether the end of a rank ends a wait: it failed while ranks save, or train on for the time that is left."""
    stop = state.run.stop
    if stop is None or not stop.ranks_not_yet_signalled or state.attempt.saved:
        return False
    return death.failed and not was_asked(death.code, death.signal)


def take_failed_rank(state: JobState, t: float, death: RankExit) -> Step:
    """Stop the others, and have evidence collected: the stop has an incident, and a card says why."""
    stop = _stop_of(state)
    text = f"{death.text} while ranks were asked to {'save' if stop.save_requested else 'train on'}"
    state, opening = finish.with_incident(state, t, text, death.rank)
    state = _with_stop(state, replace(stop, ranks_not_yet_signalled=False, rank_failed=True)).entering(Stage.STOPPING)
    state = state.with_attempt(deaths=(*state.attempt.deaths, death), evidence=None)
    left_s = max(0.0, (state.run.policy.stop.deadline_s if stop.left_s is None else stop.left_s) - (t - stop.left_from_t))
    grace_s = min(state.run.policy.stop.grace_s, left_s * RESERVED_SHARE)
    deadline_s = min(state.run.policy.evidence_deadline_s, left_s)
    return state, (
        StopRanks(state.attempt.number, SIGTERM, grace_s, "stop"),
        *opening,
        CollectEvidence(state.attempt.number, state.incidents, deadline_s),
        SetTimer("stop", state.token, grace_s + deadlines.TEARDOWN_MARGIN_S),
        SetTimer("evidence", state.token, deadline_s + deadlines.EVIDENCE_MARGIN_S),
    )


def take_evidence(state: JobState, evidence: tuple[Evidence, ...]) -> Step:
    """Use the evidence on a rank that failed while the others were spared; other evidence is of an attempt that failed by itself."""
    stop = state.run.stop
    if stop is None or not stop.rank_failed:
        return state, ()
    state = state.with_attempt(evidence=evidence)
    return finish_stopped(state) if state.attempt.ended else (state, ())


def on_time_over(state: JobState, t: float) -> Step:
    """Nothing was saved within the time, or the time to train on is over."""
    stop = state.run.stop
    if stop is None or state.attempt.ended:
        return state, ()
    state = state.entering(state.stage)
    left_s = state.run.policy.stop.deadline_s if stop.left_s is None and stop.save_requested else stop.left_s
    left_s = left_s if left_s is None else max(0.0, left_s - (t - stop.left_from_t))
    grace_s = _grace(state, left_s)
    state, actions = _stop(state, SIGTERM, min(state.run.policy.stop.grace_s, grace_s) if stop.save_requested else grace_s)
    ranks = f": {state.attempt.unsaved}" if state.attempt.unsaved else ""
    message = (PrintMessage("warning", f"no checkpoint was saved before the deadline{ranks}"),) if stop.save_requested else ()
    return state, (*message, *actions)


def on_unsaved_due(state: JobState, _t: float) -> Step:
    """The time for the save is nearly over."""
    return state, () if state.attempt.ended else (FindUnsaved(state.attempt.number),)


def on_unsaved_found(state: JobState, event: UnsavedFound) -> Step:
    """Keep who has not saved, for the message at the deadline and the run's last line."""
    return state.with_attempt(unsaved=event.text), ()


def finish_stopped(state: JobState, outcome: str = "") -> Step:
    """Leave with 75 where the job is to continue later, else with 128+n: nothing failed, a stop was requested.

    It continues later after a scheduler's notice, and where the ranks saved on request, or ended well by themselves after one; never where
    a person ended it by INT, before or after that. A job that came to its own end before any request is done.
    """
    stop = state.run.stop
    if stop is not None and stop.ranks_not_yet_signalled and not stop.save_requested and outcome == "succeeded":
        return finish.done(state)
    if stop is not None and stop.count == 1 and _may_have_saved(state, stop, outcome):
        return _find_save(state, stop)
    unanswered = stop is not None and (
        (stop.rank_failed and state.attempt.evidence is None) or (stop.save_search and not stop.save_search_done)
    )
    if stop is not None and stop.count == 1 and unanswered:
        return state, ()  # awaited: why a rank failed, and whether one saved
    signum = stop.signum if stop else SIGTERM
    saved = state.attempt.saved or (stop is not None and stop.save_requested and outcome == "succeeded")
    code = programs.REQUEUE if signum != signals.SIGINT and (saved or signals.is_notice(signum)) else 128 + signum
    reason = (
        "stopped by a signal" + (", to continue later" if code == programs.REQUEUE else "") + ("; the checkpoint is made" if saved else "")
    )
    closing: tuple[Action, ...] = ()
    if stop is not None and stop.rank_failed and state.run.incident is not None:
        verdict = classify(state.attempt.evidence or ())
        failed = f"a rank failed while it was asked to {'save' if stop.save_requested else 'train on'}"
        why = f"{reason}; {failed}" if saved else f"{reason}; {failed}, and nothing newer is saved"
        plan = Plan(PlanKind.STOP, why, "the next start continues from the last good checkpoint", "stop", code)
        closing = (
            ReportDecision(state.run.incident.number, state.attempt.number, verdict, plan, state.attempt.progress.step),
            CloseIncident(state.run.incident.number, state.attempt.number, "resolved" if saved else "stopped", state.attempt.progress.step),
        )
    elif state.run.incident is not None:
        # ranks that died of the same signal a moment before it came to us have not failed
        withdrawn = state.attempt.awaits_own_signal and state.run.incident.opened_t > state.attempt.began_t
        state, closing = finish.closed(state, state.run.incident, "withdrawn" if withdrawn else "stopped")
    return replace(state.with_run(incident=None, exit_code=code), stage=Stage.ENDED), (*closing, Finish(code, reason))


def _may_have_saved(state: JobState, stop: StopRequest, outcome: str) -> bool:
    """Whether the disk may hold a save that no rank reported: a script that saves on request may save by itself at TERM too."""
    saves = state.attempt.save_on_request and stop.signum != signals.SIGINT and (stop.save_requested or state.attempt.awaits_own_signal)
    return saves and not state.attempt.saved and outcome != "succeeded" and not stop.save_search


def _find_save(state: JobState, stop: StopRequest) -> Step:
    over_t = stop.first_t if state.attempt.over_t is None else state.attempt.over_t
    left_s = state.run.policy.stop.deadline_s if stop.left_s is None else stop.left_s
    left_s -= max(0.0, over_t - (stop.left_from_t or stop.first_t))
    deadline_s = max(LEAST_SEARCH_S, left_s - OUR_END_S)
    state = replace(state.with_run(stop=replace(stop, save_search=True)), token=state.token + 1)
    search = FindSave(state.attempt.number, min(stop.first_t, over_t), deadline_s)
    return state, (search, SetTimer("find", state.token, deadline_s + LEAST_SEARCH_S))
