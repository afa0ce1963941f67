"""A request to stop, by a person or a scheduler, and the timers by which every request is answered. See core/decide.py for the rules.

What a signal means: INT is a person's. TERM and HUP are the end, from whoever. USR1 and USR2 are a scheduler's *notice*: the end is
coming, and the job is to go on later, so it ends with 75. On all but INT a script that polls worker.should_save is asked to save first:

    RequestSave ─> Saved, or the ranks' own end ─────────────┐
        │ the time is over, less what stopping takes         v
        └──────────────────────────────────> StopRanks ─> AttemptEnded ─> Finish (75 where it saved, or was given notice)

A script that does not poll it is stopped at once by TERM and HUP. After a notice it trains on for as long as the known time allows, and
then gets TERM. If a rank fails meanwhile, the wait ends and a card says why. After any request no rank is started. So an attempt whose
ranks are not there yet is stopped at once, after a notice too.

What came counts in whatever order (`StopRequest.signum`): a job that a person ended by INT ends with 130, else one that was given notice
with 75. TERM or HUP after a notice is the announced end: the time left counts from there anew. The first INT after a notice stops ranks
that still train, as a first INT does. A further notice shortens nothing. Anything more hurries. Only a signal that comes twice is one
request: INT of the terminal and of a wrapper, TERM with systemd's SendSIGHUP=.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.exits import signal_name, was_asked
from supervisor.core import epoch, failure, gathering, lifecycle, sharing, start
from supervisor.core.actions import (
    SIGTERM,
    CollectEvidence,
    DumpStacks,
    EndLauncher,
    FindUnsaved,
    PrintMessage,
    RequestSave,
    SetTimer,
    StopRanks,
)
from supervisor.core.events import SaveSearched, StopRequested, TimeLeft
from supervisor.core.state import NOTICES, JobState, Stage, StopRequest
from supervisor.core.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.core.events import EvidenceCollected, RankExited, Saved, SaveOnRequestSeen, StacksRequested, TimerFired, UnsavedFound
    from supervisor.core.state import Step

#: Signals of one meaning closer together than this are one request: terminals, wrappers and schedulers double them.
BURST_S = 0.25
#: What a signal says. systemd's SendSIGHUP= sends HUP at once after TERM, and the two mean the same.
PERSON, END, NOTICE = "person", "end", "notice"
HURRY_GRACE_S = 2.0
#: The share of the time left that is reserved for TERM to KILL, and as much for the supervisor's own end, at most.
RESERVED_SHARE = 0.2
#: How long the answer to "how much time is left" is awaited; a tool that takes longer is ended (supervisor/run/kill_deadline.py).
ANSWER_S = 2.0
#: With less than this a save is not worth beginning.
LEAST_SAVE_S = 1.0
#: So long before the time for a save is over, ranks that have not saved are examined: they are still where they were all the time.
LOOK_S = 4.0
#: Stages in which no rank on this node can be alive.
NOTHING_RUNS = frozenset({Stage.NEW, Stage.SELECTING, Stage.CHECKING, Stage.WAITING})


def _with_stop(state: JobState, stop: StopRequest) -> JobState:
    return replace(state, run=replace(state.run, stop=stop))


def _meaning(signum: int) -> str:
    """Return what a signal says: a person ends the job, it ends, or its end is coming and it is to go on later."""
    if signum in NOTICES:
        return NOTICE
    return PERSON if signum == lifecycle.SIGINT else END


def on_stop_requested(state: JobState, event: StopRequested) -> Step:
    """First: save, or let the ranks end by themselves until the deadline. Second: TERM, then KILL within seconds. Third: now."""
    stop, meaning = state.run.stop, _meaning(event.signum)
    if stop is None:
        return _first(state, event)
    received = dict(stop.received)
    if meaning in received and event.t - received[meaning] < BURST_S:
        return state, ()
    before, stop = stop, replace(stop, received=tuple((received | {meaning: event.t}).items()))
    if meaning == PERSON:
        stop = replace(stop, signum=event.signum)
    elif meaning == NOTICE:  # it shortens nothing
        stop = replace(stop, signum=event.signum, end_announced=True) if _meaning(stop.signum) == END else stop
        return _with_stop(state, stop), ()
    if state.attempt.ended and (stop.rank_failed or stop.save_search):  # only the reason, or the search for a save, is awaited
        stop = replace(stop, save_search=True, save_search_done=True)
        state = replace(state, attempt=replace(state.attempt, evidence=state.attempt.evidence or ()))
        return lifecycle.finish_stopped(_with_stop(state, stop))
    if (
        before.count == 1
        and _meaning(before.signum) == NOTICE
        and not before.end_announced
        and (meaning == END or stop.ranks_not_yet_signalled)
    ):
        state = _with_stop(state, replace(stop, end_announced=True))
        return _in_time(replace(state, token=state.token + 1), event, event.signum) if stop.ranks_not_yet_signalled else (state, ())
    return _hurried(state, event, replace(stop, count=stop.count + 1, ranks_not_yet_signalled=False))


def _hurried(state: JobState, event: StopRequested, stop: StopRequest) -> Step:
    """The end is asked for once more: TERM and KILL within seconds, and the time after that KILL."""
    state = replace(_with_stop(state, stop), token=state.token + 1)
    if stop.count == 2:  # noqa: PLR2004 (the second signal)
        hurry = StopRanks(state.attempt.number, SIGTERM, HURRY_GRACE_S, "hurry")
        message = PrintMessage(
            "warning", f"{signal_name(event.signum)} again: ranks are killed in {HURRY_GRACE_S:.0f} s; once more kills them now"
        )
        return state, (hurry, message, SetTimer("stop", state.token, HURRY_GRACE_S + sharing.TEARDOWN_MARGIN_S))
    return state, (EndLauncher(state.attempt.number, "a third signal"),)


def _first(state: JobState, event: StopRequested) -> Step:
    ending = state.stage in {Stage.TEARDOWN, Stage.FOLLOWING, Stage.ADMITTING}
    nothing_runs = state.stage in NOTHING_RUNS or (ending and state.attempt.ended)
    starts = state.stage is Stage.STARTING
    trains = state.stage is Stage.RUNNING or (starts and state.attempt.save_on_request)
    admission = state.attempt.admission
    asked = event.signum != lifecycle.SIGINT and admission is not None and admission.save_requested
    received = ((_meaning(event.signum), event.t),)
    state = _with_stop(state, StopRequest(event.signum, 1, event.t, save_requested=asked, received=received))
    state = replace(state, stage=Stage.STOPPING, token=state.token + 1)
    if nothing_runs:
        return lifecycle.finish_stopped(state)
    if trains:
        return _in_time(state, event, event.signum)
    grace_s = _grace(state, event.left_s)
    return _stop(state, _sent(event.signum), grace_s if starts else min(state.run.policy.stop.grace_s, grace_s))


def _in_time(state: JobState, event: StopRequested | TimeLeft, signum: int) -> Step:
    """Use the time that is left: for a save where the script asks, after a notice for training on; then stop the ranks."""
    stop, t, left_s = state.run.stop, event.t, event.left_s
    assert stop is not None  # noqa: S101 (callers set it; this is for the type checker)
    stop = replace(stop, left_s=left_s, left_from_t=t, ranks_not_yet_signalled=False)
    state = replace(state, run=replace(state.run, stop=stop))
    if isinstance(event, StopRequested) and event.time_left_follows:
        return _until_it_is_known(state)
    if state.attempt.save_on_request and signum != lifecycle.SIGINT:
        return _save(state, t)
    if signum in NOTICES and left_s is not None:
        wait_s = left_s - _our_end(left_s) - _grace(state, left_s)
        if wait_s >= LEAST_SAVE_S:
            state = _with_stop(state, replace(stop, ranks_not_yet_signalled=True))
            text = f"{signal_name(signum)}: {left_s:.0f} s are left; the ranks train on for {wait_s:.0f} s and are asked to end then"
            return state, (PrintMessage("info", text), SetTimer("wait", state.token, wait_s))
    return _stop(state, _sent(signum), _grace(state, left_s))


def _until_it_is_known(state: JobState) -> Step:
    """Ask the ranks to save at once. Let them run until the time that is left is known: schedulers signal them as well."""
    stop = state.run.stop
    assert stop is not None  # noqa: S101 (as above)
    asks = state.attempt.save_on_request and not stop.save_requested
    state = _with_stop(state, replace(stop, save_requested=stop.save_requested or asks, ranks_not_yet_signalled=True))
    request = (RequestSave(state.attempt.number, state.run.policy.stop.deadline_s),) if asks else ()
    return state, (*request, SetTimer("left", state.token, ANSWER_S))


def on_time_left(state: JobState, event: TimeLeft) -> Step:
    """Count from now, whether the time that is left is known or not. If the ranks were asked to end already, it is too late for that."""
    stop = state.run.stop
    if stop is None or not stop.ranks_not_yet_signalled or state.attempt.ended:
        return state, ()
    return _in_time(replace(state, token=state.token + 1), event, SIGTERM if stop.end_announced else stop.signum)


def _save(state: JobState, t: float) -> Step:
    """Ask the ranks to save, and let them run until they have saved or the time is over."""
    stop = state.run.stop
    assert stop is not None  # noqa: S101 (as above)
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
    stop = state.run.stop
    assert stop is not None  # noqa: S101 (as above)
    state = _with_stop(state, replace(stop, ranks_not_yet_signalled=False))
    name = signal_name(stop.signum)
    message = PrintMessage(
        "info", f"{name}: ranks are asked to end, killed in {grace_s:.0f} s; send it again to hurry, a third time to kill them now"
    )
    timer = SetTimer("stop", state.token, grace_s + sharing.TEARDOWN_MARGIN_S)
    return state, (StopRanks(state.attempt.number, signum, grace_s, "stop"), message, timer)


def _sent(signum: int) -> int:
    """Return the signal for the ranks: a scheduler's notice would kill a script that does not handle it."""
    return SIGTERM if signum in NOTICES else signum


def _our_end(left_s: float) -> float:
    return min(lifecycle.OUR_END_S, RESERVED_SHARE * left_s)


def _grace(state: JobState, left_s: float | None) -> float:
    """Return what the ranks get to end by themselves: the stop deadline, or what is left for it."""
    deadline_s = state.run.policy.stop.deadline_s
    return deadline_s if left_s is None else max(0.0, min(deadline_s, left_s - _our_end(left_s)))


def on_save_on_request_seen(state: JobState, event: SaveOnRequestSeen) -> Step:
    """The script saves on request. If this is first seen while a notice runs, it is asked at once."""
    state = replace(state, attempt=replace(state.attempt, save_on_request=True))
    stop = state.run.stop
    if stop is None:
        return epoch.request_save(state)
    if not stop.ranks_not_yet_signalled or stop.save_requested or stop.signum == lifecycle.SIGINT:
        return state, ()
    return _save(replace(state, token=state.token + 1), event.t)


def on_saved(state: JobState, event: Saved) -> Step:
    """The requested checkpoint is saved: stop the ranks."""
    stop = state.run.stop
    if stop is None:
        return epoch.on_saved(state)
    if not stop.save_requested:
        return state, ()
    state = replace(state, attempt=replace(state.attempt, saved=True))
    if not stop.ranks_not_yet_signalled or state.attempt.ended:
        return state, ()
    left_s = stop.left_s if stop.left_s is None else stop.left_s - (event.t - stop.left_from_t)
    state = replace(state, token=state.token + 1)
    state, actions = _stop(state, SIGTERM, min(state.run.policy.stop.grace_s, _grace(state, left_s)))
    return state, (PrintMessage("info", "the requested checkpoint is saved"), *actions)


def on_save_searched(state: JobState, event: SaveSearched) -> Step:
    """The ranks reported no save: use what the disk holds."""
    if state.stage is Stage.TEARDOWN:
        return failure.on_last_save_searched(state, event)
    stop = state.run.stop
    if stop is None or not stop.save_search:
        return state, ()
    state = replace(state, attempt=replace(state.attempt, saved=state.attempt.saved or event.found is not None))
    return lifecycle.finish_stopped(_with_stop(state, replace(stop, save_search_done=True)))


def on_rank_exited(state: JobState, event: RankExited) -> Step:
    """A rank that fails while ranks save, or train on for the time that is left, ends the wait."""
    stop, death = state.run.stop, event.exit
    if (
        state.stage is not Stage.STOPPING
        or stop is None
        or not stop.ranks_not_yet_signalled
        or state.attempt.saved
        or not death.failed
        or was_asked(death.code, death.signal)
    ):
        return failure.on_rank_exited(state, event)
    text = f"{failure.death_text(death)} while ranks were asked to {'save' if stop.save_requested else 'train on'}"
    state, opening = start.with_incident(state, event.t, text, death.rank)
    state = replace(
        state,
        token=state.token + 1,
        run=replace(state.run, stop=replace(stop, ranks_not_yet_signalled=False, rank_failed=True)),
        attempt=replace(state.attempt, deaths=(*state.attempt.deaths, death), evidence=None),
    )
    left_s = max(0.0, (state.run.policy.stop.deadline_s if stop.left_s is None else stop.left_s) - (event.t - stop.left_from_t))
    grace_s = min(state.run.policy.stop.grace_s, left_s * RESERVED_SHARE)
    deadline_s = min(state.run.policy.evidence_deadline_s, left_s)
    return state, (
        StopRanks(state.attempt.number, SIGTERM, grace_s, "stop"),
        *opening,
        CollectEvidence(state.attempt.number, state.incidents, deadline_s),
        SetTimer("stop", state.token, grace_s + sharing.TEARDOWN_MARGIN_S),
        SetTimer("evidence", state.token, deadline_s + failure.EVIDENCE_MARGIN_S),
    )


def on_evidence_collected(state: JobState, event: EvidenceCollected) -> Step:
    """Use the evidence on a rank that failed while the others were spared; other evidence is of an attempt that failed by itself."""
    stop = state.run.stop
    if state.stage is not Stage.STOPPING or stop is None or not stop.rank_failed:
        return failure.on_evidence_collected(state, event)
    state = replace(state, attempt=replace(state.attempt, evidence=event.evidence))
    return lifecycle.finish_stopped(state) if state.attempt.ended else (state, ())


def on_stacks_requested(state: JobState, event: StacksRequested) -> Step:
    """Dump and go on."""
    del event
    return state, (DumpStacks(state.attempt.number),)


def on_timer_fired(state: JobState, event: TimerFired) -> Step:
    """Answer a timer of this stage; one of an earlier stage is void."""
    if event.token != state.token:
        return state, ()
    row = TIMERS.get((event.name, state.stage))
    if row is not None:
        return row(state, event.t)
    if event.name in {"teardown", "stop"} and not state.attempt.ended:
        return state, (EndLauncher(state.attempt.number, f"its ranks were not gone in time ({event.name})"),)
    return state, ()


def _time_is_over(state: JobState, t: float) -> Step:
    """Nothing was saved within the time, or the time to train on is over."""
    stop = state.run.stop
    if stop is None or state.attempt.ended:
        return state, ()
    state = replace(state, token=state.token + 1)
    left_s = state.run.policy.stop.deadline_s if stop.left_s is None and stop.save_requested else stop.left_s
    left_s = left_s if left_s is None else max(0.0, left_s - (t - stop.left_from_t))
    grace_s = _grace(state, left_s)
    state, actions = _stop(state, SIGTERM, min(state.run.policy.stop.grace_s, grace_s) if stop.save_requested else grace_s)
    who = f": {state.attempt.unsaved}" if state.attempt.unsaved else ""
    message = (PrintMessage("warning", f"no checkpoint was saved before the deadline{who}"),) if stop.save_requested else ()
    return state, (*message, *actions)


def _find_unsaved(state: JobState, _t: float) -> Step:
    """The time for the save is nearly over."""
    return state, () if state.attempt.ended else (FindUnsaved(state.attempt.number),)


def on_unsaved_found(state: JobState, event: UnsavedFound) -> Step:
    """Keep who has not saved, for the message at the deadline and the run's last line."""
    return replace(state, attempt=replace(state.attempt, unsaved=event.text)), ()


def _evidence_overdue(state: JobState, _t: float) -> Step:
    """The observers do not answer, and the stop does not wait for them."""
    state = replace(state, attempt=replace(state.attempt, evidence=()))
    return lifecycle.finish_stopped(state) if state.attempt.ended else (state, ())


def _time_unknown(state: JobState, t: float) -> Step:
    """The tool that knows how much time is left does not answer."""
    return on_time_left(state, TimeLeft(t, None))


def _nothing_found(state: JobState, t: float) -> Step:
    """The disk does not answer: whether a save is on it is unknown."""
    return on_save_searched(state, SaveSearched(t, state.attempt.number, None))


def _own_signal_over(state: JobState, t: float) -> Step:
    """The supervisor got no TERM: only the rank was killed by it."""
    return failure.judge_if_ready(replace(state, attempt=replace(state.attempt, awaits_own_signal=False)), t)


#: What a timer means in the stage that set it.
TIMERS: dict[tuple[str, Stage], Callable[[JobState, float], Step]] = {
    ("select", Stage.SELECTING): start.on_select_overdue,
    ("select", Stage.STARTING): gathering.on_select_overdue,
    ("nodes", Stage.STARTING): gathering.on_nodes_overdue,
    ("health", Stage.CHECKING): start.on_health_overdue,
    ("backoff", Stage.WAITING): start.select,
    ("own_signal", Stage.TEARDOWN): _own_signal_over,
    ("evidence", Stage.TEARDOWN): failure.on_evidence_overdue,
    ("decision", Stage.FOLLOWING): epoch.on_decision_overdue,
    ("evidence", Stage.STOPPING): _evidence_overdue,
    ("find", Stage.STOPPING): _nothing_found,
    ("find", Stage.TEARDOWN): _nothing_found,
    ("left", Stage.STOPPING): _time_unknown,
    ("save", Stage.STOPPING): _time_is_over,
    ("unsaved", Stage.STOPPING): _find_unsaved,
    ("wait", Stage.STOPPING): _time_is_over,
}
