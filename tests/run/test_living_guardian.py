"""A guardian lives before an attempt starts, and the loop waits for none."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from supervisor.launch import guardian_client
from supervisor.launch.guardian_client import GuardianClient
from supervisor.run import living_guardian
from supervisor.run.living_guardian import LivingGuardian
from tests.support.waiting import PATIENCE_S, wait_for


class Starts:
    """A factory of guardians that the test plays; `hello` holds them back, as a slow machine does."""

    def __init__(self) -> None:
        self.has_early_guardian = False
        self.hello = threading.Event()
        self.guardians: list[Any] = []
        self.listeners: list[tuple[Callable[[Any], None], Callable[[], None]]] = []
        self.refusals: list[Exception] = []

    def start_guardian(self, on_event: Callable[[Any], None], on_died: Callable[[], None]) -> Any:  # noqa: ANN401  a stand-in
        """See JobFactory."""
        if self.refusals:
            raise self.refusals.pop()
        assert self.hello.wait(PATIENCE_S)
        self.guardians.append(SimpleNamespace(has_ended=False, exit_status=lambda: (None, 9)))
        self.listeners.append((on_event, on_died))
        return self.guardians[-1]

    def kill(self) -> None:
        """Have the newest end."""
        self.guardians[-1].has_ended = True
        self.listeners[-1][1]()


class Case:
    """A guardian of a loop that the test turns."""

    def __init__(self) -> None:
        self.starts, self.calls, self.died = Starts(), queue.SimpleQueue[Callable[[], None]](), list[tuple[int | None, int | None]]()
        self.events: list[Any] = []
        loop: Any = SimpleNamespace(call_soon=self.calls.put)
        factory: Any = self.starts
        self.guardian = LivingGuardian(factory, loop, self.events.append, lambda *status: self.died.append(status))

    def turn(self) -> None:
        """Do what waits on the loop."""
        while not self.calls.empty():
            self.calls.get()()

    def wait(self) -> threading.Thread:
        """Have a worker wait for a guardian."""
        worker = threading.Thread(target=lambda: self.guardian.wait_living(lambda: True), daemon=True)
        worker.start()
        return worker


def test_two_workers_that_wait_for_a_hello_get_one_guardian_and_the_loop_continues() -> None:
    case = Case()
    workers = [case.wait(), case.wait()]
    case.guardian.take()  # the loop does not wait: an attempt that is stopped meanwhile has none
    assert case.guardian.living is None
    case.starts.hello.set()
    for worker in workers:
        worker.join(PATIENCE_S)
    case.guardian.take()
    assert [case.guardian.living] == case.starts.guardians
    assert case.guardian.get() is case.guardian.living


def test_the_end_of_each_guardian_is_answered_once_even_right_after_its_hello() -> None:
    case = Case()
    case.starts.hello.set()
    case.wait().join(PATIENCE_S)
    case.starts.kill()
    case.turn()  # before an attempt was given to it
    assert case.died == []
    case.guardian.take()
    case.turn()
    assert (case.died, case.guardian.living) == ([(None, 9)], None)
    assert case.guardian.get() is case.starts.guardians[0], "who still speaks to it is not heard, and waits for no new one"
    case.wait().join(PATIENCE_S)
    case.guardian.take()
    assert case.guardian.living is case.starts.guardians[1]
    case.starts.kill()
    case.turn()
    assert case.died == [(None, 9), (None, 9)]


def test_a_thread_that_cannot_be_had_for_a_moment_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(living_guardian, "RETRY_S", 0.01)
    case = Case()
    case.starts.hello.set()
    case.starts.refusals = [RuntimeError("can't start new thread")] * 2
    case.wait().join(PATIENCE_S)
    assert len(case.starts.guardians) == 1


@pytest.mark.process
@pytest.mark.parametrize("refused", ["guardian-events", "guardian-requests"])
def test_a_guardian_whose_client_gets_no_thread_is_ended(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a restart loaders of the ranks may use up the limit on processes; the guardian would stay, and nobody would know of it."""
    start, ends = threading.Thread.start, MagicMock(wraps=guardian_client._end)  # noqa: SLF001  what it ends

    def started(thread: threading.Thread) -> None:
        if thread.name == refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    monkeypatch.setattr(guardian_client, "_end", ends)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        GuardianClient.start(lambda _event: None, lambda: None)
    process = ends.call_args.args[0]
    assert process.returncode == -9
    wait_for(lambda: not any(thread.name == "guardian-events" for thread in threading.enumerate()), "the end of its threads")
