"""An exception in a worker thread is never silent: it ends the run if the loop waits for the answer, and is reported otherwise."""

from __future__ import annotations

import hashlib
import resource
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from supervisor.cluster.client import THREAD
from supervisor.core.actions import Finish
from supervisor.core.state import JobState
from supervisor.job.clock import Clock
from supervisor.run import threads
from supervisor.run.loop import Loop
from supervisor.run.main import JobRun
from supervisor.run.threads import Threads, attempted, reported_wait
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def loop() -> Loop:
    return Loop(Clock.start(), JobState(), MagicMock())


def recurses() -> None:
    recurses()


def ends(loop: Loop, when: Callable[[], bool]) -> None:
    """Let the loop finish as soon as `when` is true, in a minute at most."""
    until = time.monotonic() + 60

    def tick() -> None:
        if when() or time.monotonic() > until:
            loop.finish(Finish(0, "over"))

    loop.tick = tick


def test_the_run_ends_with_the_exception_of_a_worker_whose_answer_it_waits_for(loop: Loop) -> None:
    threads = Threads(loop, lambda _: None)
    threads.start("select", recurses)
    ends(loop, lambda: False)
    with pytest.raises(RecursionError):
        loop.run()


def test_an_exception_of_an_unawaited_worker_is_reported_and_the_run_continues(loop: Loop) -> None:
    texts: list[str] = []
    threads = Threads(loop, texts.append)
    threads.start("stacks", recurses, awaited=False)
    ends(loop, lambda: bool(texts))
    assert loop.run().exit_code == 0
    assert texts[0].startswith("a part of supervise failed (stacks): RecursionError: ")


def test_a_recurring_task_comes_again_after_an_exception_but_not_during_a_hang(loop: Loop) -> None:
    texts: list[str] = []
    threads, hangs, began = Threads(loop, texts.append), threading.Event(), []
    threads.recur("look", recurses, wait_s=10)
    threads.recur("look", lambda: (began.append(1), hangs.wait(60)), wait_s=0.01)
    wait_for(lambda: began, "the thread runs, maybe later than it is waited for")
    threads.recur("look", lambda: began.append(2), wait_s=10)
    assert began == [1]
    hangs.set()
    ends(loop, lambda: bool(texts))
    loop.run()
    assert len(texts) == 1


def test_an_observer_that_fails_is_reported_once_and_ends_nothing(loop: Loop) -> None:
    texts: list[str] = []
    threads = Threads(loop, texts.append)
    for name in ("hangs", "hangs", "pace"):
        threads.observe(name, recurses)
    ends(loop, lambda: len(texts) > 1)
    assert loop.run().exit_code == 0
    assert [text.partition(":")[0] for text in texts] == ["a part of supervise failed (hangs)", "a part of supervise failed (pace)"]


def test_a_wait_is_reported_once_it_lasts_and_a_short_one_is_not() -> None:
    reported: list[str] = []
    event = threading.Event()

    def report(text: str) -> None:
        reported.append(text)
        event.set()

    with reported_wait(report, "short", 60):
        pass
    with reported_wait(report, "long", 0.01):
        assert event.wait(PATIENCE_S)
    assert reported == ["long"]


def test_a_thread_that_only_computes_or_waits_for_a_processor_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, seen, reported = threads._runs, list[bool](), list[str]()  # noqa: SLF001  what is asked, counted

    def counted(thread: int) -> bool:
        seen.append(runs(thread))
        return seen[-1]

    monkeypatch.setattr(threads, "_runs", counted)
    with reported_wait(reported.append, "computes", 0.01):
        while len(seen) < 3:
            hashlib.sha256(bytes(1 << 20))
    assert (seen[:3], reported) == ([True] * 3, [])


def test_attempted_returns_despite_a_failure_or_a_hang() -> None:
    hangs, ended = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.wait(60)
        ended.set()

    def fail() -> None:
        raise FileNotFoundError

    attempted(fail, 10)
    attempted(hang, 0.01)
    assert not ended.is_set()
    hangs.set()
    assert ended.wait(PATIENCE_S)


@pytest.mark.parametrize(("name", "ends"), [(THREAD, True), ("metrics", False)])
def test_the_thread_that_speaks_with_the_other_nodes_ends_the_run_and_another_one_is_reported(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    ends: bool,  # noqa: FBT001  a column of the table
) -> None:
    failed: list[BaseException] = []
    texts: list[str] = []
    loop = SimpleNamespace(fail=failed.append, call_soon=lambda call: call())
    run = SimpleNamespace(loop=loop, terminal=SimpleNamespace(message=lambda text, _kind: texts.append(text)))
    monkeypatch.setattr(threading, "__excepthook__", lambda _args: None)
    monkeypatch.setattr(threading, "excepthook", lambda args: JobRun._thread_failed(run, args))  # type: ignore[arg-type]  # noqa: SLF001

    def work() -> None:
        raise LookupError("a bug")

    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()
    assert [str(error) for error in failed] == (["a bug"] if ends else [])
    assert texts == ([] if ends else [f"a part of supervise failed ({name}): LookupError: a bug; the job continues"])


@pytest.mark.parametrize(("tries", "warnings"), [(1, 0), (20, 1)])
def test_threads_that_cannot_be_had_now_are_started_later_and_a_lasting_want_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tries: int, warnings: int
) -> None:
    later: list[Callable[[], None]] = []
    loop: Any = SimpleNamespace(call_later=lambda _delay_s, call: later.append(call))
    texts: list[str] = []
    threads, done = Threads(loop, texts.append), (threading.Event(), threading.Event())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", MagicMock(side_effect=RuntimeError("can't start new thread")))
        patch.setattr(resource, "getrlimit", {resource.RLIMIT_AS: (300 << 20, -1), resource.RLIMIT_NPROC: (-1, -1)}.get)
        for event in done:
            threads.start("work", event.set)
        for _ in range(tries - 1):
            calls, later[:] = later[:], []
            for again in calls:
                again()
    assert texts == ["no thread can be started: ulimit -v is 307200, ulimit -u is unlimited; supervise waits until it has one"] * warnings
    for again in later:
        again()
    assert all(event.wait(PATIENCE_S) for event in done)
