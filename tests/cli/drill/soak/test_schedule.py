"""When the faults of a soak come, which they are, and what still fits into its hours."""

from __future__ import annotations

from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.drill.soak.schedule import BACK_SLACK, END_S, FIRST_STARTS, QUIET_SLACK, Schedule, SoakFault, TimeBox

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = set(SoakFault)


def draws(seed: int, per_hour: float = 12.0) -> Iterator[tuple[float, SoakFault | None, int]]:
    schedule = Schedule(seed, per_hour)
    while True:
        yield schedule.gap_s(), schedule.kind(ALL), schedule.rank(range(8))


def test_the_same_seed_gives_the_same_faults_and_another_seed_gives_others() -> None:
    assert list(islice(draws(7), 50)) == list(islice(draws(7), 50))
    assert list(islice(draws(7), 50)) != list(islice(draws(8), 50))


@pytest.mark.parametrize("per_hour", [6.0, 120.0])
def test_the_times_between_faults_are_exponential_with_the_mean_of_the_rate(per_hour: float) -> None:
    gaps = [gap for gap, _, _ in islice(draws(1, per_hour), 20_000)]
    mean = 3600 / per_hour
    assert fmean(gaps) == pytest.approx(mean, rel=0.03)
    assert fmean(gap > mean for gap in gaps) == pytest.approx(0.368, abs=0.02)  # 1 / e
    assert fmean(gap > 2 * mean for gap in gaps) == pytest.approx(0.135, abs=0.02)


def test_each_kind_comes_once_before_one_comes_again() -> None:
    kinds = [kind for _, kind, _ in islice(draws(3), 5 * len(ALL))]
    for begin in range(0, len(kinds), len(ALL)):
        assert set(kinds[begin : begin + len(ALL)]) == ALL


def test_a_kind_that_is_not_possible_yet_comes_first_when_it_is_alone_again() -> None:
    schedule = Schedule(5, 12.0)
    others = ALL - {SoakFault.TORN}
    first = [schedule.kind(others) for _ in range(2 * len(others))]
    assert sorted(first) == sorted([*others, *others])
    assert SoakFault.TORN in [schedule.kind(ALL) for _ in range(len(ALL))]
    assert schedule.kind(set()) is None


def test_the_rank_is_one_of_those_that_are_there() -> None:
    schedule = Schedule(2, 12.0)
    assert {schedule.rank({3, 1, 6}) for _ in range(100)} == {1, 3, 6}


def test_the_run_with_faults_leaves_the_quiet_run_the_time_of_its_new_steps() -> None:
    box = TimeBox(3600.0, first_start_s=100.0, new_steps_s=1000.0)
    assert box.left_s(1500.0, with_quiet_run=False) == pytest.approx(3600 - END_S - 1500)
    assert box.left_s(1500.0, with_quiet_run=True) == pytest.approx(3600 - END_S - 1500 - 1100 * QUIET_SLACK - END_S)
    assert TimeBox(60.0).end_s == pytest.approx(6.0)  # a short box is no end alone


def test_a_fault_that_the_job_cannot_come_back_from_in_time_is_not_begun() -> None:
    box = TimeBox(600.0, first_start_s=10.0, new_steps_s=100.0)
    assert box.need_s(None, 20.0) == pytest.approx(10 * FIRST_STARTS + 20)
    assert box.need_s(40.0, 20.0) == pytest.approx(40 * BACK_SLACK)  # what was seen holds the time until it is noticed
    assert box.left_s(380.0, with_quiet_run=True) > box.need_s(None, 0.0) > box.left_s(400.0, with_quiet_run=True)
