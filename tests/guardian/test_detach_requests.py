"""Who asked to be left alone, where the kernel answers late or never: an environment is read under its process's own memory lock."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from supervisor.guardian import ownership, process_tree
from tests.support.figures import within

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Longer than a busy machine needs for the answers of the others. What bounds a round of many that are silent is the product's own.
PATIENCE_S = 30.0


class Silence(NamedTuple):
    """The pids that do not answer, what ends that, and who was asked so far."""

    pids: set[int]
    answer: threading.Event
    asked: list[int]


def process(pid: int) -> process_tree.ProcessStat:
    return process_tree.ProcessStat(pid, 1, 7, "S", 1)


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silence]:
    """Let pids not answer; odd pids ask to be left alone."""
    silence = Silence(set(), threading.Event(), [])

    def read(pid: int, name: str) -> bytes:
        assert name == "environ"
        silence.asked.append(pid)
        if pid in silence.pids:
            silence.answer.wait(60)
        return ownership.DETACH + b"\0A=1\0" if pid % 2 else b"A=1\0"

    monkeypatch.setattr(process_tree, "_read_proc", read)
    yield silence
    silence.answer.set()


@pytest.mark.bench
def test_a_silent_process_holds_nobody_up_and_is_not_asked_twice(silence: Silence, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_s = ownership.ANSWERS_S + 0.5
    monkeypatch.setattr(ownership, "ANSWERS_S", PATIENCE_S)
    silence.pids.add(4)
    detach_requests, all_of_them = ownership.DetachRequests(), [process(pid) for pid in range(1, 10)]
    began = time.monotonic()
    assert detach_requests.detached(all_of_them) == {1, 3, 5, 7, 9}
    assert within(limit_s, since=began)
    assert detach_requests.detached(all_of_them) == {1, 3, 5, 7, 9}
    assert silence.asked.count(4) == 1


def test_many_that_do_not_answer_take_a_bounded_time_and_then_ask_for_nothing(silence: Silence) -> None:
    silence.pids.update(range(2, 20, 2))
    detach_requests, all_of_them = ownership.DetachRequests(), [process(pid) for pid in range(2, 20, 2)]
    rounds = 0
    while detach_requests.detached(all_of_them):  # those that could not be asked yet
        rounds += 1
    assert 1 <= rounds <= 9


def test_an_answer_that_comes_late_still_counts(silence: Silence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "ANSWERS_S", PATIENCE_S)
    silence.pids.add(3)
    detach_requests = ownership.DetachRequests()
    assert detach_requests.detached([process(3)]) == set()
    silence.answer.set()
    until = time.monotonic() + 60
    while not detach_requests.detached([process(3)]):
        assert time.monotonic() < until
