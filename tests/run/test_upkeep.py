"""The upkeep of a run where its loop does not run: at its start, while a mirror is asked, and at its end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from supervisor.run.upkeep import LEASE_REFRESH_S, Upkeep
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable


class Run:
    """Its lock counts what renews it; the directory hangs while `answers` is not set."""

    def __init__(self) -> None:
        self.now, self.begun, self.renewed, self.answers = 1000.0, 0, 0, threading.Event()
        loop: Any = MagicMock()
        loop.clock.now = lambda: self.now
        lock: Any = MagicMock(refresh=self._refresh)
        parts: dict[str, Any] = {name: MagicMock() for name in ("signals", "notifier", "alert_watch", "log", "settings", "loop_beat")}
        parts["notifier"].watchdog_interval_s.return_value = None
        self.upkeep = Upkeep(loop, MagicMock(), MagicMock(), held=lock, **parts)

    def _refresh(self) -> bool:
        self.begun += 1
        assert self.answers.wait(PATIENCE_S)
        self.renewed += 1
        return True

    def passes(self, calls: int) -> None:
        """Let so many times pass after which the lease is to be renewed."""
        for _ in range(calls):
            self.upkeep.without_the_loop()
            self.now += LEASE_REFRESH_S


@pytest.fixture
def run() -> Run:
    return Run()


def test_a_directory_that_hangs_holds_up_nobody_and_gathers_no_threads(run: Run) -> None:
    run.passes(5)
    wait_for(lambda: run.begun == 1, "the lease to be renewed")
    run.answers.set()
    wait_for(lambda: run.renewed == 1, "the directory to answer")

    def again() -> bool:
        run.passes(1)
        return run.renewed > 1

    wait_for(again, "the lease to be renewed again")


def test_a_thread_that_cannot_be_started_is_tried_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.answers.set()
    start: Callable[[threading.Thread], None] = threading.Thread.start
    fails = [RuntimeError("can't start new thread")] * 2

    def started(thread: threading.Thread) -> None:
        if fails:
            raise fails.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    run.passes(3)
    wait_for(lambda: run.renewed == 1, "the lease to be renewed at the third time")
