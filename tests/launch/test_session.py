"""What a session keeps as evidence of an end, beside what the core hears of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.core.model import Evidence, RankExit
from supervisor.job.clock import Clock
from supervisor.launch.session import AttemptEnding


@pytest.fixture
def ending() -> AttemptEnding:
    """The end of an attempt; of what a session stands on it needs the clock alone."""
    context: Any = SimpleNamespace(loop=SimpleNamespace(clock=Clock(1000.0, 0.0)))
    return AttemptEnding(context)


def test_a_core_dump_is_told_with_its_rank_and_time(ending: AttemptEnding) -> None:
    ending.rank_died(RankExit(3, 77, at_ns=5 * 10**9, signal=11, core_dumped=True))
    assert ending.facts == [Evidence("exit", "core", "it dumped core", rank=3, t=1005.0)]


def test_a_death_without_one_adds_nothing(ending: AttemptEnding) -> None:
    ending.rank_died(RankExit(3, 77, at_ns=5 * 10**9, signal=11))
    assert ending.facts == []
