"""What the failures of a run cost: the time until the training is where it was."""

from __future__ import annotations

import pytest

from supervisor.core.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSelected,
    Event,
    EvidenceCollected,
    ProgressObserved,
    RankExited,
    StopRequested,
    SupervisorStarted,
)
from supervisor.core.failure import losses
from supervisor.core.machine import decide, initial
from supervisor.core.model import CheckpointRef, Phase, Policy, RankExit, RankInfo
from supervisor.core.state import JobState, Losses

POLICY = Policy(checkpoints_declared=True, backoff_base_s=0.0)
SAVED = CheckpointRef("80.pt", 80, "digest")


def after(*happened: Event, state: JobState | None = None) -> JobState:
    state = initial() if state is None else state
    for event in happened:
        state, _ = decide(state, event)
    return state


def attempt(number: int, t: float) -> tuple[Event, ...]:
    chosen = SAVED if number > 1 else None
    return (
        CheckpointSelected(t, number - 1, chosen, number - 1),
        AttemptStarted(t + 1, number, (RankInfo(0, 0, 100 + number, 1),), 1),
    )


def step(number: int, t: float, at: int | None, seen: int) -> Event:
    return ProgressObserved(t, number, at, seen, Phase.TRAIN, "80.pt" if number > 1 else None)


def killed(number: int, t: float) -> tuple[Event, ...]:
    return (
        RankExited(t, number, RankExit(0, 100 + number, int(t * 1e9), signal=9)),
        EvidenceCollected(t, number, number, ()),
        AttemptEnded(t + 0.5, number, "failed"),
    )


BEGUN = (SupervisorStarted(0.0, "run", POLICY), *attempt(1, 1.0), step(1, 3.0, 1, 1), step(1, 60.0, 120, 120))


def test_a_run_without_a_failure_lost_nothing() -> None:
    state = after(*BEGUN, AttemptEnded(70.0, 1, "succeeded"))
    assert losses.total(state) == Losses()


def test_lost_is_the_time_until_the_failed_step_is_reached_again_between_two_reports() -> None:
    back = (*attempt(2, 101.0), step(2, 110.0, 81, 1))
    state = after(*BEGUN, *killed(1, 100.0), *back)
    assert state.run.incident is None  # resolved, and still behind
    assert state.run.losses.since_t == pytest.approx(100.0)
    state = after(step(2, 120.0, 131, 51), state=state)
    # from step 81 at 110 s to step 131 at 120 s: step 120 at 117.8 s
    assert state.run.losses == Losses(1, pytest.approx(17.8), None, 110.0)
    state = after(step(2, 130.0, 181, 101), AttemptEnded(140.0, 2, "succeeded"), state=state)
    assert losses.total(state).lost_s == pytest.approx(17.8)


def test_a_second_failure_on_the_way_back_counts_from_the_first() -> None:
    state = after(*BEGUN, *killed(1, 100.0), *attempt(2, 101.0), step(2, 110.0, 90, 10), *killed(2, 115.0), *attempt(3, 116.0))
    state = after(step(3, 150.0, 120, 40), state=state)
    assert state.run.losses.incidents == 2
    assert state.run.losses.lost_s == pytest.approx(50.0)


def test_an_incident_that_is_withdrawn_takes_nothing_of_an_earlier_one_away() -> None:
    behind = after(*BEGUN, *killed(1, 100.0), *attempt(2, 101.0), step(2, 110.0, 90, 10))
    withdrawn = (RankExited(115.0, 2, RankExit(0, 102, 0, signal=15)), StopRequested(115.5, 15), AttemptEnded(116.0, 2, "failed"))
    state = after(*withdrawn, state=behind)
    assert (state.run.losses.incidents, state.run.losses.since_t) == (1, pytest.approx(100.0))
    assert losses.total(state).lost_s == pytest.approx(15.0)  # until its ranks died


def test_an_incident_that_is_withdrawn_alone_costs_nothing() -> None:
    withdrawn = (RankExited(115.0, 1, RankExit(0, 101, 0, signal=15)), StopRequested(115.5, 15), AttemptEnded(116.0, 1, "failed"))
    lost = losses.total(after(*BEGUN, *withdrawn))
    assert (lost.incidents, lost.lost_s) == (0, 0.0)


def test_where_no_step_is_known_the_first_progress_is_the_way_back() -> None:
    state = after(*BEGUN, *killed(1, 100.0), *attempt(2, 101.0), step(2, 104.0, None, 0))
    assert state.run.losses.since_t == pytest.approx(100.0)  # the ranks only start
    assert after(step(2, 106.0, None, 1), state=state).run.losses.lost_s == pytest.approx(6.0)


def test_a_supervisor_that_died_with_its_ranks_lost_the_time_since() -> None:
    state = after(*BEGUN)
    state = after(SupervisorStarted(300.0, "run", POLICY, continues=True, last_alive_t=100.0), state=state)
    state = after(*attempt(2, 301.0), step(2, 310.0, 120, 40), state=state)
    assert (state.run.losses.incidents, state.run.losses.lost_s) == (1, pytest.approx(210.0))


def test_a_wait_in_a_queue_is_not_lost() -> None:
    behind = after(*BEGUN, *killed(1, 100.0), *attempt(2, 101.0), step(2, 110.0, 90, 10), AttemptEnded(120.0, 2, "succeeded"))
    state = after(SupervisorStarted(9000.0, "run", POLICY, continues=True), state=behind)
    assert state.run.losses.lost_s == pytest.approx(20.0)
    assert state.run.losses.since_t is None
