"""A guardian tells the coordinator of its node's end: after a real kill -9 of its supervisor, once nothing runs any more."""

from __future__ import annotations

import socket
import sys
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.guardian.last_word import WITHIN_S
from tests.support.figures import within
from tests.support.waiting import is_running

from .conftest import read_pid, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Side

pytestmark = pytest.mark.process
#: A rank that does not end by itself.
RANK = "import os, signal, time; signal.signal(15, signal.SIG_IGN); open('rank', 'w').write(f'{os.getpid()}\\n'); time.sleep(600)"


@pytest.mark.parametrize("has_ranks", [True, False], ids=["with a rank", "between two attempts"])
def test_the_last_word_comes_once_the_ranks_of_a_killed_supervisor_are_gone(side: Callable[..., Side], *, has_ranks: bool) -> None:
    node = side()
    with socket.create_server(("127.0.0.1", 0)) as coordinator:
        coordinator.settimeout(20.0)
        node.call("last_word", "127.0.0.1", 1, "an earlier coordinator")
        node.call("last_word", "127.0.0.1", coordinator.getsockname()[1], "greeting\nnode b is gone\n")
        rank = 0
        if has_ranks:
            node.run([sys.executable, "-c", RANK])
            rank = read_pid(node.directory / "rank")
        node.call("tails", 1)
        node.wait("tails")
        node.process.kill()
        connection, _ = coordinator.accept()
        with connection, connection.makefile("rb") as file:
            assert file.read() == b"greeting\nnode b is gone\n"
            assert not (rank and is_running(rank))


def test_the_last_word_is_not_sent_after_a_run_declared_over(side: Callable[..., Side]) -> None:
    node = side()
    with socket.create_server(("127.0.0.1", 0)) as coordinator:
        coordinator.settimeout(0.0)
        node.call("last_word", "127.0.0.1", coordinator.getsockname()[1], "node b is gone")
        node.finish()
        until(lambda: not is_running(node.hello["pid"]), subject="the end of the guardian")
        with pytest.raises(BlockingIOError):
            coordinator.accept()


def test_a_coordinator_that_does_not_answer_holds_the_guardian_up_for_some_seconds_at_most(side: Callable[..., Side]) -> None:
    node = side()
    with socket.create_server(("127.0.0.1", 0), backlog=1) as coordinator:  # it accepts nobody
        node.call("last_word", "127.0.0.1", coordinator.getsockname()[1], "node b is gone")
        node.call("tails", 1)
        node.wait("tails")
        began = time.monotonic()
        node.process.kill()
        until(lambda: not is_running(node.hello["pid"]), WITHIN_S + 5.0, "the end of the guardian")
        assert within(WITHIN_S + 2.0, since=began)
