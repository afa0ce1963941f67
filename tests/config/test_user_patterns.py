"""A pattern of the user's own holds up nobody: neither the search, nor what else the process has to do."""

from __future__ import annotations

import threading
import time

import pytest

from supervisor.config import user_patterns
from supervisor.config.user_patterns import Bounded

#: Backtracks without end, and nothing in it lets a search give up early: "x" stands everywhere.
ENDLESS = r"(?:(x+x+)+y)"
TEXT = "x" * 12_000


def test_it_finds_what_re_finds_with_groups_by_name() -> None:
    told: list[str] = []
    pattern = Bounded(r"shard (?P<shard>\d+)(?P<more>!)?", told.append)
    found = pattern.search("reader: shard 12 is damaged")
    assert found is not None
    assert (found["shard"], found["more"]) == ("12", None)
    assert pattern.search("no such thing") is None
    assert told == []


def test_a_search_without_end_is_given_up_and_reported_once_and_never_begun_again() -> None:
    told: list[str] = []
    pattern = Bounded(ENDLESS, told.append)
    began = time.process_time()
    for _ in range(100):
        assert pattern.search(TEXT) is None
    assert time.process_time() - began < 10 * user_patterns.SEARCH_S
    assert len(told) == 1
    assert "searched one text of 12000 characters for more than 0.1 s" in told[0]
    assert pattern.search("xxy") is None, "it is out of use"


def test_a_pattern_that_is_merely_slow_may_not_take_all_of_the_time() -> None:
    told: list[str] = []
    pattern = Bounded(r"(?:x+)+y", told.append)
    length = 400
    while not told and length < len(TEXT):  # as long as takes some milliseconds here
        began = time.thread_time()
        pattern.search(TEXT[:length])
        if time.thread_time() - began > 4 * user_patterns.FAIR_S:
            break
        length += 400
    began = time.process_time()
    for _ in range(1000):
        pattern.search(TEXT[:length])
    assert time.process_time() - began < 1.5
    assert len(told) == 1


def test_an_honest_pattern_is_never_out_of_use_however_often_it_is_searched() -> None:
    told: list[str] = []
    pattern = Bounded(r"damaged: (?P<shard>\S+)$", told.append)
    for _ in range(30_000):
        pattern.search("reader 3: shard is damaged: a few words, and no end of it")
    assert told == []
    assert pattern.search("damaged: 7") is not None


def test_another_thread_goes_on_while_a_search_takes_long() -> None:
    turns: list[float] = []
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.001):
            turns.append(time.monotonic())

    worker = threading.Thread(target=work)
    worker.start()
    began = time.monotonic()
    Bounded(ENDLESS, lambda _: None).search(TEXT)
    ended = time.monotonic()
    over.set()
    worker.join(10)
    assert sum(began < turn < ended for turn in turns) >= 5


@pytest.mark.parametrize("pattern", [r"\N{DOES NOT EXIST}", "(?P<a", "[z-a]"])
def test_what_is_no_pattern_is_a_value_error(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Bounded(pattern, lambda _: None)
