"""Signals become events with the time at which they came, however late the loop takes them."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.config.settings import Settings
from supervisor.core.events import Event, StopRequested
from supervisor.core.machine import decide
from supervisor.core.model import RankInfo
from supervisor.core.signals import SIGNALS
from supervisor.core.state import Attempt, JobState, Stage
from supervisor.run.stop_signals import STOPS, StopSignals

if TYPE_CHECKING:
    from collections.abc import Callable


class BusyLoop:
    """A loop that takes nothing until it is told to."""

    def __init__(self) -> None:
        self.t = 100.0
        self.clock = SimpleNamespace(now=lambda: self.t)
        self.state = JobState(stage=Stage.RUNNING, attempt=Attempt(1, ranks=(RankInfo(0, 0, 10, 1),)))
        self.calls: list[Callable[[], None]] = []
        self.posted: list[Event] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        """Keep the call."""
        self.calls.append(call)

    def post(self, event: Event) -> None:
        """Keep the event."""
        self.posted.append(event)


@pytest.fixture
def loop() -> BusyLoop:
    return BusyLoop()


@pytest.fixture
def signals(loop: BusyLoop) -> StopSignals:
    job: Any = SimpleNamespace(environ={}, settings=Settings())
    parts: Any = loop
    threads: Any = None
    return StopSignals(job, parts, threads, ())


def test_two_signals_that_a_busy_loop_takes_at_once_are_two(loop: BusyLoop, signals: StopSignals) -> None:
    for t in (100.0, 101.0):
        loop.t = t
        signals.request_stop(signal.SIGTERM)
    loop.t = 105.0
    for call in loop.calls:
        call()
    assert [event.t for event in loop.posted if isinstance(event, StopRequested)] == [100.0, 101.0]
    state = loop.state
    for event in loop.posted:
        state, actions = decide(state, event)
    assert state.run.stop is not None
    assert state.run.stop.count == 2
    assert any(getattr(action, "why", "") == "hurry" for action in actions)


def test_the_signals_that_are_caught_are_those_that_have_a_row() -> None:
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2} == set(STOPS)
    assert len(STOPS) == sum(len(row.signals) for row in SIGNALS.values())
