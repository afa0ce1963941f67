"""Where the time until the first step of an attempt went: the parts add up to the whole, and nothing unknown is invented."""

from __future__ import annotations

import random

import pytest

from supervisor.core import events
from supervisor.core.model import Hang, HangKind, Policy, RankExit
from supervisor.job.clock import Clock
from supervisor.journal.records import StartTimes
from supervisor.report import wording
from supervisor.report.start_times import PARTS, StartClock, launched_t, split

S = 10**9
MOMENTS_NS = {"hello": 20 * S, "imported": 23 * S, "grouped": 24 * S, "first_step": 26 * S}


class Times:
    """A start clock, and what it reported. The job's clock reads 100 s when CLOCK_MONOTONIC reads 0."""

    def __init__(self) -> None:
        self.reports: list[StartTimes] = []
        self.clock = StartClock(Clock(100.0, 0.0), 100.0, self.reports.append)

    def start(self, attempt: int, t: float) -> None:
        """Start the ranks of an attempt."""
        self.clock.took(events.CheckpointSelected(t - 1, attempt, None, 0))
        self.clock.took(events.AttemptStarted(t, attempt, (), 2))


@pytest.fixture
def times() -> Times:
    return Times()


def test_the_parts_add_up_to_the_whole_whatever_is_known_and_in_whatever_order() -> None:
    names = [name for name, _ in PARTS]
    for seed in range(200):
        chance = random.Random(seed)  # noqa: S311
        moments = {name: chance.uniform(10, 20) for name in chance.sample(names, chance.randrange(len(names) + 1))}
        parts = split(10.0, moments)
        assert all(took_s >= 0 for took_s in parts.values())
        assert set(parts) == {part for name, part in PARTS if name in moments}, "no part is invented, and none is lost"
        assert sum(parts.values()) == pytest.approx(max(moments.values(), default=10.0) - 10.0)


def test_a_part_that_ran_beside_an_earlier_one_counts_for_what_it_took_beyond() -> None:
    parts = split(0.0, {"detected": 1.0, "gone": 5.0, "met": 3.0, "spawned": 5.5})
    assert parts == {"detect": 1.0, "teardown": 4.0, "rendezvous": 0.0, "start": 0.5}


def test_a_launch_is_reported_at_the_first_step_of_the_last_rank(times: Times) -> None:
    times.clock.took(events.SupervisorStarted(101.0, "run", Policy()))
    times.start(1, 119.0)
    times.clock.trained(1, MOMENTS_NS)
    times.clock.trained(1, MOMENTS_NS)
    parts = {"supervise": 1.0, "selection": 17.0, "start": 2.0, "import": 3.0, "init": 1.0, "first_step": 2.0}
    assert times.reports == [StartTimes(1, "launch", 26.0, parts)]


def test_a_restart_is_counted_from_the_death_of_the_first_rank(times: Times) -> None:
    times.start(1, 101.0)
    times.clock.trained(1, MOMENTS_NS)
    times.clock.took(events.RankExited(110.5, 1, RankExit(1, 5, 10 * S, signal=9)))
    times.clock.took(events.RankExited(110.7, 1, RankExit(0, 6, 11 * S, signal=15)))
    times.clock.incident_opened(1)
    times.clock.took(events.AttemptEnded(111.0, 1, "failed"))
    times.clock.took(events.TimerFired(115.0, "backoff", 1))
    times.clock.took(events.TimerFired(115.5, "teardown", 1))
    times.start(2, 119.0)
    times.clock.trained(1, MOMENTS_NS)  # late, of an attempt that is over
    times.clock.trained(2, MOMENTS_NS)
    assert len(times.reports) == 2
    assert (times.reports[1].attempt, times.reports[1].after, times.reports[1].total_s) == (2, "failure", 16.0)
    first = {"detect": 0.5, "teardown": 0.5, "backoff": 4.0, "selection": 3.0, "start": 2.0}
    assert times.reports[1].parts == {**first, "import": 3.0, "init": 1.0, "first_step": 2.0}


def test_ranks_that_stood_still_were_failing_since_their_last_progress(times: Times) -> None:
    times.start(1, 101.0)
    times.clock.trained(1, {"first_step": 2 * S})
    times.clock.took(events.HangConfirmed(400.0, 1, Hang(HangKind.LATE, "rank 1 waits", still_s=290.0)))
    times.clock.incident_opened(1)
    times.start(2, 500.0)
    times.clock.trained(2, {"first_step": 410 * S})
    assert times.reports[1].parts["detect"] == pytest.approx(times.clock._clock.now() - 110.0, abs=5)  # noqa: SLF001  the one it was given


def test_an_attempt_without_a_first_step_is_reported_at_its_end_as_far_as_it_came(times: Times) -> None:
    times.start(1, 103.0)
    times.clock.took(events.RankExited(110.5, 1, RankExit(1, 5, 10 * S, code=1)))
    assert times.reports == [StartTimes(1, "launch", 3.0, {"selection": 2.0, "start": 1.0}, trained=False)]
    times.clock.took(events.AttemptEnded(111.0, 1, "failed"))
    times.start(2, 113.0)
    times.clock.took(events.AttemptEnded(119.0, 2, "succeeded"))
    assert [(report.attempt, report.total_s) for report in times.reports] == [(1, 3.0), (2, 3.0)]


def test_the_launch_is_when_this_process_began() -> None:
    clock = Clock.start()
    assert 0 < clock.now() - launched_t(clock) < 36_000


def test_the_line_of_a_start_has_its_seconds_in_order_and_the_longest_parts() -> None:
    parts = {"teardown": 1.02, "decision": 0.004, "selection": 0.14, "import": 2.61, "load": 0.22, "first_step": 0.08}
    assert wording.start_text(StartTimes(2, "failure", 4.07, parts)) == (
        "4.07 s since the failure (most: 2.61 s import, 1.02 s tear-down): "
        "1.02 s tear-down, 0.14 s checkpoint choice, 2.61 s import, 0.22 s checkpoint load, 0.08 s first step"
    )
    few = wording.start_text(StartTimes(2, "membership", 3.0, {"rendezvous": 2.0, "start": 1.0}, trained=False))
    assert few == "3.00 s since nodes asked to join, without a first step: 2.00 s rendezvous, 1.00 s rank start"


def test_the_part_that_is_supervises_own_says_so() -> None:
    launch = wording.start_text(StartTimes(1, "launch", 7.0, {"supervise": 2.0, "agent": 5.0}))
    assert launch == "7.00 s since the launch: 2.00 s start of supervise, 5.00 s torchrun"


def test_no_part_is_shown_by_a_word_of_the_code() -> None:
    shown = {wording.START_PARTS.get(part, part) for _, part in PARTS}
    assert not [name for name in shown if "_" in name]
    assert wording.START_PARTS.keys() <= {part for _, part in PARTS}
