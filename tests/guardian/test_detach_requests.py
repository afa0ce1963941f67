"""Who asked to be left alone, where the kernel answers late or never: an environment is read under its process's own memory lock."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.guardian import ownership, process_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Silence = tuple[set[int], threading.Event]


def process(pid: int) -> process_tree.ProcessStat:
    return process_tree.ProcessStat(pid, 1, 7, "S", 1)


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silence]:
    """Give the pids that do not answer and what ends that; odd pids ask to be left alone."""
    silent: set[int] = set()
    answer = threading.Event()

    def read(pid: int, name: str) -> bytes:
        assert name == "environ"
        if pid in silent:
            answer.wait(60)
        return ownership.DETACH + b"\0A=1\0" if pid % 2 else b"A=1\0"

    monkeypatch.setattr(process_tree, "_read_proc", read)
    yield silent, answer
    answer.set()


def took(ask: Callable[[], set[int]]) -> tuple[set[int], float]:
    began = time.monotonic()
    return ask(), time.monotonic() - began


def test_one_that_does_not_answer_holds_nobody_up_and_is_not_asked_twice(silence: Silence) -> None:
    silence[0].add(4)
    detach_requests, all_of_them = ownership.DetachRequests(), [process(pid) for pid in range(1, 10)]
    asked, first_s = took(lambda: detach_requests.detached(all_of_them))
    assert asked == {1, 3, 5, 7, 9}
    assert first_s < ownership.ANSWERS_S + 0.5
    asked, second_s = took(lambda: detach_requests.detached(all_of_them))
    assert asked == {1, 3, 5, 7, 9}
    assert second_s < ownership.SLOW_ANSWER_S


def test_many_that_do_not_answer_take_a_bounded_time_and_then_ask_for_nothing(silence: Silence) -> None:
    silence[0].update(range(2, 20, 2))
    detach_requests, all_of_them = ownership.DetachRequests(), [process(pid) for pid in range(2, 20, 2)]
    rounds = 0
    while detach_requests.detached(all_of_them):  # those that could not be asked yet
        rounds += 1
    assert 1 <= rounds <= 9


def test_an_answer_that_comes_late_still_counts(silence: Silence) -> None:
    silence[0].add(3)
    detach_requests = ownership.DetachRequests()
    assert detach_requests.detached([process(3)]) == set()
    silence[1].set()
    until = time.monotonic() + 10
    while not detach_requests.detached([process(3)]):
        assert time.monotonic() < until
