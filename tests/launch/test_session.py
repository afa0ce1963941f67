"""What a session keeps as evidence of an end, beside what the core hears of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.core.model import Evidence, RankExit
from supervisor.job.clock import Clock
from supervisor.launch.session import LEAST_GRACE_S, AttemptEnding


@pytest.fixture
def ending() -> AttemptEnding:
    """The end of an attempt; of what a session stands on it needs the clock alone."""
    context: Any = SimpleNamespace(loop=SimpleNamespace(clock=Clock(1000.0, 0.0)))
    return AttemptEnding(context)


def test_a_core_dump_is_reported_with_its_rank_and_time(ending: AttemptEnding) -> None:
    ending.rank_died(RankExit(3, 77, at_ns=5 * 10**9, signal=11, core_dumped=True))
    assert ending.facts == [Evidence("exit", "core", "it dumped core", rank=3, t=1005.0)]


def test_a_death_without_one_adds_nothing(ending: AttemptEnding) -> None:
    ending.rank_died(RankExit(3, 77, at_ns=5 * 10**9, signal=11))
    assert ending.facts == []


def at(ending: AttemptEnding, t: float) -> None:
    ending.context.loop.clock = SimpleNamespace(now=lambda: t)  # type: ignore[misc]  a fake edge: the clock


def test_processes_left_by_the_ranks_have_no_second_grace(ending: AttemptEnding) -> None:
    at(ending, 100.0)
    assert ending.left_grace_s(5.0) == 5.0, "no rank was ended"
    ending.ranks_asked_to_end(5.0)
    at(ending, 102.0)
    assert ending.left_grace_s(5.0) == 3.0
    ending.ranks_asked_to_end(1.5)
    ending.ranks_asked_to_end(5.0)
    at(ending, 102.25)
    assert ending.left_grace_s(5.0) == 1.25, "the earlier time holds"
    at(ending, 105.0)
    assert ending.left_grace_s(5.0) == LEAST_GRACE_S, "it has not got TERM before"
    assert ending.left_grace_s(0.0) == 0.0
    ending.start(2)
    assert ending.left_grace_s(5.0) == 5.0
