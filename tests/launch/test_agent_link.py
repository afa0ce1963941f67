"""Orders to an agent are sent in order; an agent that does not read blocks nobody."""

from __future__ import annotations

import queue
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from supervisor.launch.agent_link import AgentLink
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

Pair = tuple[AgentLink, socket.socket, "queue.SimpleQueue[OSError]"]
#: More than the buffer of a socket takes.
LONG = b"x" * (2 << 20) + b"\n"


@pytest.fixture
def pair() -> Iterator[Pair]:
    our_end, their_end = socket.socketpair()
    lost = queue.SimpleQueue[OSError]()
    link = AgentLink(our_end)
    yield link, their_end, lost
    link.close()
    their_end.close()
    wait_for(lambda: not any(thread.name == "agent-orders" for thread in threading.enumerate()), "the end of its thread")


def test_an_agent_that_does_not_read_holds_nobody_up_and_gets_all_in_order_later(pair: Pair) -> None:
    link, agent, lost = pair
    sender = threading.Thread(target=lambda: [link.send(line, lost.put) for line in (b"first\n", LONG, b"last\n")], daemon=True)
    sender.start()
    sender.join(10)
    assert not sender.is_alive()
    with agent.makefile("rb") as lines:
        assert [lines.readline() for _ in range(3)] == [b"first\n", LONG, b"last\n"]
    assert lost.empty()


def test_a_message_unsent_at_the_end_of_the_link_is_reported(pair: Pair) -> None:
    link, _agent, lost = pair
    link.send(LONG, lost.put)
    link.close()
    assert isinstance(lost.get(timeout=PATIENCE_S), OSError)
    link.send(b"later\n", lost.put)
    assert isinstance(lost.get(timeout=PATIENCE_S), OSError)
