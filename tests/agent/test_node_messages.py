"""All-gathers between the nodes of a round, over a real store of torch's."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, ClassVar

import pytest

from supervisor.agent import node_messages, round_agreement
from supervisor.agent.node_messages import NodeAllGathers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed import Store

DEADLINE_S = 30.0


@pytest.fixture
def store() -> Iterator[Store]:
    server = round_agreement.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # noqa: FBT003  positional in every version
    yield round_agreement.PrefixStore("run", server)
    for node in Node.all:
        node.stopped.set()
        node.said.put(None)
        node.join(DEADLINE_S)
    Node.all.clear()
    del server


class Node(threading.Thread):
    """One node's agent: it says what it is given, waiting for the others each time, and keeps what all said."""

    all: ClassVar[list[Node]] = []

    def __init__(self, store: Store, node: int, nodes: int, token: str = "t") -> None:  # noqa: S107  no secret
        super().__init__(daemon=True)
        self.all.append(self)
        self.stopped = threading.Event()
        self.said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.heard: queue.SimpleQueue[list[str] | BaseException] = queue.SimpleQueue()
        self._exchange = NodeAllGathers(
            round_agreement.PrefixStore("run", round_agreement.own_client(store)), token, node, nodes, self.stopped.is_set
        )
        self.start()

    def run(self) -> None:
        """See the class."""
        number = 0
        while True:
            try:
                text = self.said.get(timeout=0.05)
            except queue.Empty:
                self._exchange.beat()
                continue
            if text is None:
                return
            number += 1
            try:
                self.heard.put(self._exchange.gather(number, text))
            except (round_agreement.AttemptCancelled, TimeoutError) as error:
                self.heard.put(error)


def test_every_node_hears_what_all_said_in_the_order_of_the_nodes_however_late_one_is(store: Store) -> None:
    nodes = [Node(store, n, 3) for n in range(3)]
    for number in (1, 2):
        for node, one in enumerate(nodes[:2]):
            one.said.put(f"{number}: {node}")
        with pytest.raises(queue.Empty):
            nodes[0].heard.get(timeout=0.3)
        nodes[2].said.put(f"{number}: 2")
        assert [one.heard.get(timeout=DEADLINE_S) for one in nodes] == [[f"{number}: {n}" for n in range(3)]] * 3


def test_another_round_hears_nothing_of_the_last(store: Store) -> None:
    first = [Node(store, n, 2, "a") for n in range(2)]
    for one in first:
        one.said.put("old")
    for one in first:
        assert one.heard.get(timeout=DEADLINE_S) == ["old", "old"]
    later = Node(store, 0, 2, "b")
    later.said.put("new")
    with pytest.raises(queue.Empty):
        later.heard.get(timeout=0.3)


def test_a_stop_ends_the_waiting(store: Store) -> None:
    one = Node(store, 0, 2)
    one.said.put("mine")
    with pytest.raises(queue.Empty):
        one.heard.get(timeout=0.3)
    one.stopped.set()
    assert isinstance(one.heard.get(timeout=DEADLINE_S), round_agreement.AttemptCancelled)


def test_a_node_that_reads_for_long_is_waited_for_and_one_whose_agent_is_gone_is_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_messages, "SILENT_S", 1.5)
    monkeypatch.setattr(node_messages, "BEAT_S", 0.2)
    waiting, reading = Node(store, 0, 2), Node(store, 1, 2)
    waiting.said.put("mine")
    with pytest.raises(queue.Empty):
        waiting.heard.get(timeout=3.0)  # it reads for twice as long as silence would be borne
    began = time.monotonic()
    reading.said.put(None)  # its agent is gone
    error = waiting.heard.get(timeout=DEADLINE_S)
    assert isinstance(error, TimeoutError)
    assert "node 1 of this rendezvous" in str(error)
    assert time.monotonic() - began > 1.0


def test_how_each_node_began_reaches_all_others_whoever_tells_first_and_nobody_who_left(store: Store) -> None:
    heard: list[queue.SimpleQueue[str]] = [queue.SimpleQueue() for _ in range(3)]
    told = [
        node_messages.NodeBroadcasts(round_agreement.PrefixStore("run", round_agreement.own_client(store)), "t", n, 3, heard[n].put)
        for n in range(3)
    ]
    told[1].send("one")
    assert [heard[n].get(timeout=DEADLINE_S) for n in (0, 2)] == ["one", "one"]
    told[0].leave()
    told[2].send("two")
    assert heard[1].get(timeout=DEADLINE_S) == "two"
    with pytest.raises(queue.Empty):
        heard[0].get(timeout=1.5)
    for one in told:
        one.leave()
