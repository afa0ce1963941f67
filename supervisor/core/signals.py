"""The meaning of each signal, and its effect at each moment of a job: data, from which the tables of docs/guides/preemption.md are made.

`stop.py` looks the answer up and carries it out. Two signals of one meaning within BURST_S are one request: terminals, wrappers and
schedulers double them, and systemd's SendSIGHUP= sends HUP at once after TERM.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from supervisor.core.state import Stage

if TYPE_CHECKING:
    from supervisor.core.state import JobState, StopRequest

#: signal(7); the core imports nothing that touches the system.
SIGHUP, SIGINT, SIGUSR1, SIGUSR2, SIGTERM = 1, 2, 10, 12, 15
#: Signals of one meaning closer together than this are one request.
BURST_S = 0.25


class Meaning(StrEnum):
    """The meaning of a signal."""

    PERSON = "person"
    END = "end"
    NOTICE = "notice"


class SignalRow(NamedTuple):
    """One meaning: its signals, and what they say and lead to, for people."""

    signals: tuple[int, ...]
    says: str
    exit_code: str


#: By what counts most: whatever came, in whatever order, the first row of which any signal came decides the exit code.
SIGNALS: dict[Meaning, SignalRow] = {
    Meaning.PERSON: SignalRow((SIGINT,), "a person ends the job, and waits: nothing is saved for it", "130"),
    Meaning.NOTICE: SignalRow((SIGUSR1, SIGUSR2), "a scheduler's notice: the end is coming, and the job is to continue later", "75"),
    Meaning.END: SignalRow((SIGTERM, SIGHUP), "the end, from any sender", "75 where the ranks saved, else 143 (129 for HUP)"),
}
_MEANINGS = {signum: meaning for meaning, row in SIGNALS.items() for signum in row.signals}


def meaning_of(signum: int) -> Meaning:
    """Return what a signal says. A signal that has no row is an end."""
    return _MEANINGS.get(signum, Meaning.END)


def is_notice(signum: int) -> bool:
    """Return whether a signal announces the end."""
    return meaning_of(signum) is Meaning.NOTICE


def asks_end(stop: StopRequest) -> bool:
    """Return whether the end itself was asked for, by a person or by TERM or HUP, and not only announced."""
    return not is_notice(stop.signum) or any(meaning != Meaning.NOTICE for meaning, _ in stop.received)


class SignalEffect(StrEnum):
    """The action about a signal, in words for people. INT and HUP go to the ranks as they are, for any other signal they get TERM."""

    FINISH = "the run ends at once"
    STOP = "TERM (INT, HUP), and KILL after `stop.deadline_s`"
    STOP_SOON = "TERM (INT, HUP), and KILL after `stop.grace_s`"
    SAVE = "a save, where the script calls `should_save`; else TERM (HUP), and KILL after `stop.deadline_s`"
    TRAIN_ON = (
        "a save, where the script calls `should_save`; else the ranks train on as long as the known time allows, and then get TERM; "
        "at once where it is unknown"
    )
    ANNOUNCED = "the end that was announced: it shortens nothing, and the time that it leaves counts from now"
    HURRY = "TERM, and KILL within 2 s; once more: KILL at once"
    GIVE_UP_SEARCH = "the search is given up, and the run ends at once"
    NOTHING = "shortens nothing"


class SignalMoment(StrEnum):
    """Where a job is when a signal comes: its stage, and the effect of earlier signals, in words for people."""

    NO_RANK = "no rank lives: a checkpoint is selected, the node is examined, a restart waits (NEW, SELECTING, CHECKING, WAITING)"
    STARTING = "the ranks are being started (STARTING)"
    RUNNING = "the ranks run (RUNNING; STARTING, if a rank was seen to call `should_save`)"
    BEING_STOPPED = "the ranks are being stopped already, for a failure or for nodes that join (TEARDOWN, FOLLOWING, ADMITTING)"
    NOTICED = "after a notice, while the ranks save or train on (STOPPING)"
    NOTICED_LATE = "after a notice, once the ranks were asked to end (STOPPING)"
    ENDING = "after TERM, HUP or INT, also where a notice came before or after it (STOPPING)"
    SEARCHING = "no rank lives after a signal: the last save, or the reason of a failure, is looked for (STOPPING)"


class MomentRow(NamedTuple):
    """The effect of each meaning at a moment."""

    person: SignalEffect
    end: SignalEffect
    notice: SignalEffect


#: The effect of each signal. In ENDED nothing is left to end.
EFFECTS: dict[SignalMoment, MomentRow] = {
    SignalMoment.NO_RANK: MomentRow(SignalEffect.FINISH, SignalEffect.FINISH, SignalEffect.FINISH),
    SignalMoment.STARTING: MomentRow(SignalEffect.STOP, SignalEffect.STOP, SignalEffect.STOP),
    SignalMoment.RUNNING: MomentRow(SignalEffect.STOP, SignalEffect.SAVE, SignalEffect.TRAIN_ON),
    SignalMoment.BEING_STOPPED: MomentRow(SignalEffect.STOP_SOON, SignalEffect.STOP_SOON, SignalEffect.STOP_SOON),
    SignalMoment.NOTICED: MomentRow(SignalEffect.STOP, SignalEffect.ANNOUNCED, SignalEffect.NOTHING),
    SignalMoment.NOTICED_LATE: MomentRow(SignalEffect.HURRY, SignalEffect.ANNOUNCED, SignalEffect.NOTHING),
    SignalMoment.ENDING: MomentRow(SignalEffect.HURRY, SignalEffect.HURRY, SignalEffect.NOTHING),
    SignalMoment.SEARCHING: MomentRow(SignalEffect.GIVE_UP_SEARCH, SignalEffect.GIVE_UP_SEARCH, SignalEffect.NOTHING),
}
#: Stages in which no rank on this node can be alive.
NOTHING_RUNS = frozenset({Stage.NEW, Stage.SELECTING, Stage.CHECKING, Stage.WAITING})


def moment_of(state: JobState) -> SignalMoment:
    """Return where the job is. Not of ENDED, which takes no signal."""
    stop, attempt = state.run.stop, state.attempt
    if stop is not None:
        if attempt.ended and (stop.rank_failed or stop.save_search):
            return SignalMoment.SEARCHING
        if asks_end(stop):
            return SignalMoment.ENDING
        return SignalMoment.NOTICED if stop.ranks_not_yet_signalled else SignalMoment.NOTICED_LATE
    if state.stage in NOTHING_RUNS:
        return SignalMoment.NO_RANK
    if state.stage in {Stage.TEARDOWN, Stage.FOLLOWING, Stage.ADMITTING}:
        return SignalMoment.NO_RANK if attempt.ended else SignalMoment.BEING_STOPPED
    return SignalMoment.RUNNING if state.stage is Stage.RUNNING or attempt.save_on_request else SignalMoment.STARTING


def effect_of(state: JobState, signum: int) -> SignalEffect:
    """Return what a signal leads to."""
    return getattr(EFFECTS[moment_of(state)], meaning_of(signum))  # type: ignore[no-any-return]  # the fields are the meanings
