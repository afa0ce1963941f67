"""What a request to stop means: of several signals, in every order, near and far in time; and nothing is started after it.

What the ranks get is told in four words. save: they are asked to save. stop: they are asked to end, with the full grace. hurry: they are
killed in 2 s. kill: they are killed now.
"""

from __future__ import annotations

from itertools import permutations, product
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2
from typing import TYPE_CHECKING

import pytest

from supervisor.core import actions as act
from supervisor.core import events as core_events
from supervisor.core.machine import decide, initial
from supervisor.core.model import Cause, Claim, Evidence, Gpu, Launcher, Phase, Policy, RankExit, RankInfo
from supervisor.core.signals import SignalEffect, SignalMoment, effect_of, moment_of
from supervisor.core.state import JobState, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

POLICY = Policy(checkpoints_learned=True, health=True)
STARTED = core_events.SupervisorStarted(0.0, "run", POLICY)
SELECTED = core_events.CheckpointSelected(1.0, 0, None, 0)
CHECKED = core_events.HealthChecked(2.0, 0, ())
RUNS = core_events.AttemptStarted(3.0, 1, (RankInfo(0, 0, 10, 1),), 1)
DIED = core_events.RankExited(4.0, 1, RankExit(0, 10, 5, code=1))
ENDED = core_events.AttemptEnded(5.0, 1, "failed")
FOUND = core_events.EvidenceCollected(6.0, 1, 1, (Evidence("log", "text", "No space left", 0, claim=Claim(Cause.DISK_FULL, 0.9)),), 0.5)

#: By the stage in which the stop comes: what happened before it.
BEFORE: dict[Stage, tuple[core_events.Event, ...]] = {
    Stage.SELECTING: (STARTED,),
    Stage.CHECKING: (STARTED, SELECTED),
    Stage.STARTING: (STARTED, SELECTED, CHECKED),
    Stage.RUNNING: (STARTED, SELECTED, CHECKED, RUNS),
    Stage.TEARDOWN: (STARTED, SELECTED, CHECKED, RUNS, DIED),
    Stage.WAITING: (STARTED, SELECTED, CHECKED, RUNS, DIED, ENDED, FOUND),
}


def late(attempt: int) -> tuple[core_events.Event, ...]:
    """Return what may still be under way when a stop comes."""
    return (
        core_events.LauncherStarted(10.0, 9, None, 1, 2),
        core_events.LauncherFellBack(10.0, Launcher.STOCK, "torch does not fit"),
        core_events.CheckpointSelected(10.0, attempt, None, 0),
        core_events.HealthChecked(10.0, attempt, ()),
        core_events.LauncherExited(10.0, attempt, "guardian", signal=9),
        core_events.AttemptEnded(10.0, attempt, "failed"),
    )


def played(state: JobState, *events: core_events.Event) -> tuple[JobState, list[act.Action]]:
    """Return the state after the events, and all that was asked for."""
    orders: list[act.Action] = []
    for event in events:
        state, actions = decide(state, event)
        orders += actions
    return state, orders


@pytest.mark.parametrize("signum", [2, 10, 15])
@pytest.mark.parametrize("stage", BEFORE)
def test_no_attempt_starts_after_a_stop(stage: Stage, signum: int) -> None:
    before, _ = played(initial(), core_events.GpusListed(0.0, (Gpu(0, "GPU-0"), Gpu(1, "GPU-1"))), *BEFORE[stage])
    assert before.stage is stage
    for order in permutations(late(before.attempt.number)):
        state, actions = played(before, core_events.StopRequested(9.0, signum), *order)
        assert not any(isinstance(action, (act.BeginAttempt, act.SelectCheckpoint)) for action in actions)
        assert not state.awaits_ranks(state.attempt.number)
        assert state.stage is Stage.ENDED


def test_the_step_of_a_stopped_attempt_is_the_last_one_of_its_ranks() -> None:
    trained = core_events.ProgressObserved(4.0, 1, 7, 7, Phase.TRAIN)
    stop, last = core_events.StopRequested(9.0, 15), core_events.ProgressObserved(10.0, 1, 85, 85, Phase.TRAIN)
    state, _ = played(initial(), *BEFORE[Stage.RUNNING], trained, stop, last, core_events.AttemptEnded(10.0, 1, "stopped"))
    assert (state.stage, state.attempt.progress.step) == (Stage.ENDED, 85)


SIGNALS = (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2)
NOTICES = {SIGUSR1, SIGUSR2}
NEAR_S, FAR_S = 0.1, 5.0
SAVES = core_events.SaveOnRequestSeen(4.0, 1)
Gaps = tuple[float, ...]


def same_meaning(first: int, second: int) -> bool:
    return first == second or {first, second} in ({SIGTERM, SIGHUP}, NOTICES)


def word(action: act.Action) -> str:
    if isinstance(action, act.RequestSave):
        return "save"
    if isinstance(action, act.EndLauncher):
        return "kill"
    return action.why if isinstance(action, act.StopRanks) else ""


def effects(signals: Sequence[int], gaps: Gaps, *between: core_events.Event, saves: bool = True) -> tuple[list[list[str]], int]:
    """Return what the ranks get for each signal, and the exit code once they have ended. `between`: after the first signal."""
    state, _ = played(initial(), *BEFORE[Stage.RUNNING], *((SAVES,) if saves else ()))
    t, answers = 10.0, []
    for number, signum in enumerate(signals):
        t += gaps[number - 1] if number else 0.0
        state, actions = decide(state, core_events.StopRequested(t, signum, 600.0 if signum in NOTICES else None))
        answers.append([text for action in actions if (text := word(action))])
        if not number:
            state, more = played(state, *between)
            answers[0] += [text for action in more if (text := word(action))]
    ended = (core_events.AttemptEnded(t + 1.0, 1, "stopped"), core_events.SaveSearched(t + 1.0, 1, None))
    _, actions = played(state, *ended)
    return answers, next(action.exit_code for action in actions if isinstance(action, act.Finish))


@pytest.mark.parametrize(
    ("signals", "gap_s", "ranks_get", "code"),
    [
        ((SIGINT, SIGINT), FAR_S, [["stop"], ["hurry"]], 130),
        ((SIGINT, SIGINT), NEAR_S, [["stop"], []], 130),
        ((SIGINT, SIGTERM), FAR_S, [["stop"], ["hurry"]], 130),
        ((SIGINT, SIGTERM), NEAR_S, [["stop"], ["hurry"]], 130),
        ((SIGINT, SIGUSR1), FAR_S, [["stop"], []], 130),
        ((SIGINT, SIGUSR1), NEAR_S, [["stop"], []], 130),
        ((SIGTERM, SIGINT), FAR_S, [["save"], ["hurry"]], 130),
        ((SIGTERM, SIGINT), NEAR_S, [["save"], ["hurry"]], 130),
        ((SIGTERM, SIGTERM), FAR_S, [["save"], ["hurry"]], 143),
        ((SIGTERM, SIGTERM), NEAR_S, [["save"], []], 143),
        ((SIGTERM, SIGHUP), FAR_S, [["save"], ["hurry"]], 143),
        ((SIGTERM, SIGHUP), NEAR_S, [["save"], []], 143),
        ((SIGTERM, SIGUSR1), FAR_S, [["save"], []], 75),
        ((SIGTERM, SIGUSR1), NEAR_S, [["save"], []], 75),
        ((SIGUSR1, SIGINT), FAR_S, [["save"], ["stop"]], 130),
        ((SIGUSR1, SIGINT), NEAR_S, [["save"], ["stop"]], 130),
        ((SIGUSR1, SIGTERM), FAR_S, [["save"], []], 75),
        ((SIGUSR1, SIGTERM), NEAR_S, [["save"], []], 75),
        ((SIGUSR1, SIGHUP), FAR_S, [["save"], []], 75),
        ((SIGUSR1, SIGUSR1), FAR_S, [["save"], []], 75),
        ((SIGUSR1, SIGUSR1), NEAR_S, [["save"], []], 75),
        ((SIGUSR1, SIGUSR2), FAR_S, [["save"], []], 75),
        ((SIGUSR2, SIGUSR1), NEAR_S, [["save"], []], 75),
    ],
)
def test_two_signals_while_the_ranks_save(signals: tuple[int, int], gap_s: float, ranks_get: list[list[str]], code: int) -> None:
    assert effects(signals, (gap_s,)) == (ranks_get, code)


@pytest.mark.parametrize(
    ("signals", "second", "code"),
    [
        ((SIGUSR1, SIGINT), ["hurry"], 130),
        ((SIGUSR1, SIGTERM), [], 75),
        ((SIGUSR1, SIGUSR1), [], 75),
        ((SIGTERM, SIGINT), ["hurry"], 130),
        ((SIGTERM, SIGTERM), ["hurry"], 75),
        ((SIGTERM, SIGUSR1), [], 75),
    ],
)
def test_a_signal_after_the_save_finds_ranks_that_are_asked_to_end(signals: tuple[int, int], second: list[str], code: int) -> None:
    assert effects(signals, (FAR_S,), core_events.Saved(12.0, 1)) == ([["save", "stop"], second], code)


@pytest.mark.parametrize(("second", "code"), [(SIGINT, 130), (SIGTERM, 75)])
def test_a_second_stop_does_not_wait_for_the_search_of_a_save(second: int, code: int) -> None:
    ended = core_events.AttemptEnded(10.5, 1, "stopped")
    state, _ = played(initial(), *BEFORE[Stage.RUNNING], SAVES, core_events.StopRequested(10.0, SIGUSR1, 600.0), ended)
    _, actions = played(state, core_events.StopRequested(10.6, second))
    assert [action.exit_code for action in actions if isinstance(action, act.Finish)] == [code]


def test_a_notice_to_a_script_that_cannot_save_leaves_the_end_to_the_next_signal() -> None:
    """It trains on after the notice: the announced end, or a person, is the first to stop it."""
    assert effects((SIGUSR1, SIGTERM), (NEAR_S,), saves=False) == ([[], ["stop"]], 75)
    assert effects((SIGUSR1, SIGINT, SIGINT), (FAR_S, FAR_S), saves=False) == ([[], ["stop"], ["hurry"]], 130)


THREE = [(signals, gaps) for signals in product(SIGNALS, repeat=3) for gaps in product((NEAR_S, FAR_S), repeat=2)]


@pytest.mark.parametrize(
    ("signals", "texts"),
    [
        (
            (SIGUSR1, SIGINT, SIGINT),
            ["SIGUSR1: ranks are asked to end", "SIGINT hurries them, and a second SIGINT kills them now", "SIGINT: ranks are killed"],
        ),
        ((SIGTERM, SIGTERM), ["SIGTERM: ranks are asked to end", "send it again to hurry", "SIGTERM: ranks are killed"]),
        ((SIGINT, SIGHUP), ["SIGINT: ranks are asked to end", "SIGHUP: ranks are killed"]),
    ],
)
def test_the_message_on_a_further_signal_matches_its_effect(signals: tuple[int, ...], texts: list[str]) -> None:
    stops = [core_events.StopRequested(10.0 + place, signum) for place, signum in enumerate(signals)]
    _, actions = played(initial(), *BEFORE[Stage.RUNNING], *stops)
    printed = "; ".join(action.text for action in actions if isinstance(action, act.PrintMessage))
    assert [text for text in texts if text not in printed] == []
    assert any(isinstance(action, act.EndLauncher) for action in actions) == (len(signals) == 3)


@pytest.mark.parametrize("saved", [False, True])
def test_of_three_signals_a_person_s_counts_most_then_a_notice(*, saved: bool) -> None:
    for signals, gaps in THREE:
        between = (core_events.Saved(10.05, 1),) if saved and signals[0] != SIGINT else ()
        code = 130 if SIGINT in signals else 75 if between or NOTICES & set(signals) else 128 + signals[0]
        assert effects(signals, gaps, *between)[1] == code, (signals, gaps)


def test_of_three_signals_only_a_doubled_one_is_ignored() -> None:
    for signals, gaps in THREE:
        doubled = same_meaning(signals[0], signals[1]) and gaps[0] == NEAR_S
        answers, code = effects(signals, gaps)
        if doubled:
            rest, rest_code = effects((signals[0], signals[2]), (sum(gaps),))
            assert (answers, code) == ([rest[0], [], rest[1]], rest_code), (signals, gaps)


def test_each_further_demand_for_the_end_takes_one_step_more_and_a_notice_takes_none() -> None:
    steps = ["stop", "hurry", "kill"]
    for signals in product(SIGNALS, repeat=3):
        answers, _ = effects(signals, (FAR_S, FAR_S), saves=False)
        demands = [signum for signum in signals if signum not in NOTICES]
        assert [words for words, signum in zip(answers, signals, strict=True) if signum not in NOTICES] == [
            [w] for w in steps[: len(demands)]
        ]
        assert not any(words for words, signum in zip(answers, signals, strict=True) if signum in NOTICES)


# the table of the signals (core/signals.py)


def at_moment(moment: SignalMoment) -> JobState:
    """Return a state of each moment. The script saves on request where that matters."""
    notice = core_events.StopRequested(10.0, SIGUSR1, 600.0)
    histories: dict[SignalMoment, tuple[core_events.Event, ...]] = {
        SignalMoment.NO_RANK: BEFORE[Stage.WAITING],
        SignalMoment.STARTING: BEFORE[Stage.STARTING],
        SignalMoment.RUNNING: (*BEFORE[Stage.RUNNING], SAVES),
        SignalMoment.BEING_STOPPED: BEFORE[Stage.TEARDOWN],
        SignalMoment.NOTICED: (*BEFORE[Stage.RUNNING], notice),
        SignalMoment.NOTICED_LATE: (*BEFORE[Stage.TEARDOWN], notice),
        SignalMoment.ENDING: (*BEFORE[Stage.RUNNING], core_events.StopRequested(10.0, SIGTERM)),
        SignalMoment.SEARCHING: (*BEFORE[Stage.RUNNING], SAVES, notice, core_events.AttemptEnded(10.5, 1, "stopped")),
    }
    return played(initial(), *histories[moment])[0]


def done_by(actions: Sequence[act.Action]) -> set[SignalEffect]:
    """Return which answers the actions may be."""
    stops = {(a.why, a.grace_s) for a in actions if isinstance(a, act.StopRanks)}
    if any(isinstance(action, act.Finish) for action in actions):
        return {SignalEffect.FINISH, SignalEffect.GIVE_UP_SEARCH}
    if any(isinstance(action, act.RequestSave) for action in actions):
        return {SignalEffect.SAVE, SignalEffect.TRAIN_ON}
    if not stops:
        return {SignalEffect.NOTHING, SignalEffect.ANNOUNCED}
    ((why, grace_s),) = stops
    if why == "hurry":
        return {SignalEffect.HURRY}
    return {SignalEffect.STOP_SOON} if grace_s == POLICY.stop.grace_s else {SignalEffect.STOP, SignalEffect.ANNOUNCED}


@pytest.mark.parametrize("signum", SIGNALS)
@pytest.mark.parametrize("moment", SignalMoment, ids=lambda moment: moment.name)
def test_a_signal_does_what_the_table_says(moment: SignalMoment, signum: int) -> None:
    state = at_moment(moment)
    assert moment_of(state) is moment
    _, actions = decide(state, core_events.StopRequested(20.0, signum))
    assert effect_of(state, signum) in done_by(actions)


@pytest.mark.parametrize("stage", BEFORE)
def test_a_second_signal_counts_in_every_stage_however_soon_it_comes(stage: Stage) -> None:
    for first, second in product(SIGNALS, repeat=2):
        if same_meaning(first, second):
            continue
        state, actions = played(initial(), *BEFORE[stage], core_events.StopRequested(10.0, first, 600.0))
        if state.stage is Stage.ENDED:
            continue
        state, more = played(state, core_events.StopRequested(10.01, second, 30.0))
        state, last = played(state, core_events.AttemptEnded(11.0, 1, "stopped"), core_events.SaveSearched(11.0, 1, None))
        code = next(action.exit_code for action in (*actions, *more, *last) if isinstance(action, act.Finish))
        assert code == (130 if SIGINT in {first, second} else 75 if NOTICES & {first, second} else 128 + first), (first, second)


def test_the_time_until_an_announced_end_is_void_once_that_end_is_asked_for() -> None:
    state, _ = played(initial(), *BEFORE[Stage.RUNNING], core_events.StopRequested(10.0, SIGUSR1, time_left_follows=True))
    state, _ = decide(state, core_events.StopRequested(10.1, SIGTERM, time_left_follows=True))
    state, actions = decide(state, core_events.TimeLeft(10.2, 600.0, SIGUSR1))
    assert actions == ()
    state, actions = decide(state, core_events.TimeLeft(10.3, 4.0, SIGTERM))
    assert [action.grace_s for action in actions if isinstance(action, act.StopRanks)] == [pytest.approx(3.2)]
