"""The control store goes to another host: real stores and nodes over real sockets, and a register that the test holds."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.cluster import messages as protocol
from supervisor.cluster.client import NodeClient, StoreAddress
from supervisor.cluster.follower import LEAST_ANSWERED, MOST_UNANSWERED, StoreFollower, WatchedRegister
from supervisor.cluster.kept import KeptFile, KeptFor, KeptNode, remembered
from supervisor.cluster.model import FAILURE, RESTART, STOP, ClusterDecision, ClusterRules, Epoch
from supervisor.cluster.node import NodeMemory, new_node
from supervisor.cluster.node import step as node_step
from supervisor.cluster.register import RegisterChanged, Registered, RegisterUnreachable, StoreRecord
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUN = KeptFor("run", "job")
#: A busy machine may keep a thread waiting for a second: that is no loss.
RULES = ClusterRules(
    nodes=3, beat_s=0.2, lease_s=2.4, gone_s=1.2, return_s=3.0, report_s=20.0, renew_s=0.2, hold_s=1.6, away_s=60.0, pause_s=5.0
)


class HeldRegister:
    """A register in memory. away: the nodes that it does not answer."""

    def __init__(self) -> None:
        self.found = Registered(0, "")
        self.away: set[str] = set()
        self._lock = threading.Lock()

    def record(self) -> StoreRecord:
        """Return the record."""
        found = StoreRecord.read(self.found.value)
        assert found is not None
        return found


class ReachedRegister:
    """It, as one node reaches it."""

    def __init__(self, held: HeldRegister, node: str) -> None:
        self._held, self._node = held, node

    def read(self) -> Registered:
        """See Register."""
        if self._node in self._held.away:
            raise RegisterUnreachable("away")
        return self._held.found

    def write(self, value: str, version: int) -> int:
        """See Register."""
        with self._held._lock:  # noqa: SLF001
            if self.read().version != version:
                raise RegisterChanged
            self._held.found = Registered(version + 1, value)
            return version + 1


class Node:
    """A node with its follower, which ticks as a loop does."""

    def __init__(self, held: HeldRegister, index: int, followed: str = "") -> None:
        self.name, self.index = f"n{index}/1", index
        self.done: list[protocol.NodeOutput] = []
        self.kept: list[tuple[NodeMemory, StoreAddress | None]] = []
        self.client = NodeClient(NodeMemory(self.name), RULES, time.monotonic, lambda *kept: self.kept.append(kept), self._emitted)
        self.follower = StoreFollower(ReachedRegister(held, self.name), self.client, RULES, "127.0.0.1", followed, pytest.fail)
        self._ends = threading.Event()
        self._loop = threading.Thread(target=self._tick, daemon=True)
        self.client.start()
        self.follower.start()
        self._loop.start()

    def _emitted(self, output: protocol.NodeOutput) -> None:
        self.done.append(output)
        if isinstance(output, protocol.EpochEnded):
            self.client.give(protocol.EpochReport(time.monotonic(), f"evidence of {self.name}"))
        if isinstance(output, protocol.JudgeReports):
            made = ClusterDecision("restart", f"by {self.name}")
            self.client.give(protocol.DecisionProposed(time.monotonic(), output.number, made))
        if isinstance(output, protocol.StoreSilent):
            self.client.give(protocol.EndEpoch(time.monotonic(), FAILURE, "the store is silent"))

    def _tick(self) -> None:
        while not self._ends.wait(0.02):
            self.client.give(protocol.NodeTick(time.monotonic()))

    def meets(self, token: str, index: int, count: int) -> None:
        """Its agent has met the others."""
        self.client.give(protocol.NodesTogether(time.monotonic(), token, index, count, 1))

    def acted(self) -> list[protocol.ActOn]:
        """Return the decisions that it acted on."""
        return [one for one in self.done if isinstance(one, protocol.ActOn)]

    def silent(self) -> bool:
        """Whether its store fell silent."""
        return any(isinstance(one, protocol.StoreSilent) for one in self.done)

    def close(self) -> None:
        """End it, as its machine ends: nobody is told."""
        if not self._ends.is_set():
            self._ends.set()
            self.follower.close(0.0)
            self.client.close(2.0)


@pytest.fixture
def held() -> HeldRegister:
    """Return the register."""
    return HeldRegister()


@pytest.fixture
def nodes(held: HeldRegister) -> Iterator[list[Node]]:
    """Return three nodes that train in epoch 1."""
    found = [Node(held, index) for index in range(3)]
    for node in found:
        node.meets("first", node.index, 3)
    for node in found:
        wait_for(lambda node=node: any(isinstance(one, protocol.EpochBegan) for one in node.done), "the epoch", 60)
    yield found
    for node in found:
        node.close()


def test_a_member_takes_over_from_a_host_that_is_lost_and_all_act_on_one_decision(held: HeldRegister, nodes: list[Node]) -> None:
    first = held.record()
    assert first.node == nodes[0].name, "the first of the meeting serves"
    nodes[0].close()
    for node in nodes[1:]:
        wait_for(lambda node=node: bool(node.acted()), "a decision", 60)
    second = held.record()
    assert second.node in {node.name for node in nodes[1:]}
    assert (second.key, second.store == first.store) == (first.key, False)
    decisions = {node.acted()[0].decision for node in nodes[1:]}
    assert len(decisions) == 1
    assert dict(second.rows)["decision/1"] == decisions.pop().value()
    for node in nodes[1:]:  # `status --all-nodes` asks the store there, also while the decision is awaited
        assert any(address is not None and address.port == second.port and memory.acted is None for memory, address in node.kept)
    lost = next(one for node in nodes for one in node.done if isinstance(one, protocol.JudgeReports)).missing
    assert lost == ((nodes[0].name, f"lost: it served the control store, and is silent for {RULES.hold_s:g} s"),)


def test_a_store_that_cannot_renew_its_record_serves_on_while_it_hears_all_members_and_decides_nothing(
    held: HeldRegister, nodes: list[Node]
) -> None:
    served = held.record().store
    held.away = {node.name for node in nodes}  # the register is away for all
    began = time.monotonic()
    wait_for(lambda: time.monotonic() - began > 2 * RULES.lease_s, "two leases", 60)
    assert not any(node.silent() for node in nodes), "no healthy rank notices"
    nodes[1].client.give(protocol.EndEpoch(time.monotonic(), FAILURE, "a rank failed"))
    began = time.monotonic()
    wait_for(lambda: time.monotonic() - began > 2 * RULES.lease_s, "two leases", 60)
    assert not any(isinstance(one, protocol.EpochEnded) for node in nodes for one in node.done), "what is not committed is not sent"
    held.away = set()
    for node in nodes:
        wait_for(lambda node=node: bool(node.acted()), "a decision", 60)
    assert held.record().store == served
    assert len({node.acted()[0].decision for node in nodes}) == 1


def test_a_register_that_lost_its_data_gets_the_record_again(held: HeldRegister, nodes: list[Node]) -> None:
    served = held.record()
    held.found = Registered(0, "")
    wait_for(lambda: held.found.version > 0, "the record", 60)
    assert held.record() == served
    assert not any(node.silent() for node in nodes)


def test_a_host_that_the_register_alone_cannot_reach_gives_way_once_it_misses_a_member(held: HeldRegister, nodes: list[Node]) -> None:
    held.away = {nodes[0].name}
    nodes[1].close()
    for node in (nodes[0], nodes[2]):
        wait_for(node.silent, "the store to be silent", 60)
    wait_for(lambda: held.record().node == nodes[2].name, "the last node to serve", 60)
    held.away = set()
    for node in (nodes[0], nodes[2]):
        wait_for(lambda node=node: bool(node.acted()), "a decision", 60)
    assert nodes[0].acted()[0].decision == nodes[2].acted()[0].decision


def test_a_node_that_was_not_there_learns_how_the_job_ended_though_all_others_are_gone_and_begins_anew_when_started_again(
    held: HeldRegister,
) -> None:
    end = Epoch(7, ("n1/1", "n2/1"), "n1/1", "token").row(), ("decision/7", ClusterDecision(STOP, "why").value())
    held.found = Registered(5, StoreRecord("store", "n1/1", "127.0.0.1", 1, "key", end).value())
    late = Node(held, 0, followed="key")
    try:
        wait_for(lambda: protocol.ClosedWithoutUs(7, ClusterDecision(STOP, "why")) in late.done, "the end", 60)
        late.client.give(protocol.GiveUp(time.monotonic(), "its supervise ended"))
        wait_for(lambda: late.kept, "what it keeps", 60)
        (memory, address), forgets = late.kept[-1], (NodeMemory("n0/2"), None)
        assert remembered(KeptNode(RUN, memory, address), RUN, "n0/2") == forgets, "else it would serve that end again at each start"
    finally:
        late.close()


def test_a_thread_that_cannot_be_had_for_a_moment_costs_a_node_nothing_but_time(
    held: HeldRegister, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, refused, warnings, real = Node(held, 0), {"find-store", "control-store", "kept-file"}, list[str](), threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name in refused:
            refused.discard(thread.name)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    node.follower._warn = warnings.append  # noqa: SLF001
    try:
        node.meets("alone", 0, 1)
        wait_for(lambda: any(isinstance(one, protocol.EpochBegan) for one in node.done), "the epoch", 60)
    finally:
        node.close()
    assert warnings == ["this node cannot serve the control store of the nodes: can't start new thread"]
    file = KeptFile(tmp_path / "node.json", warnings.append)
    for written in (False, True):
        file.write(KeptNode(RUN, NodeMemory("n")))
        assert (file.read(KeptNode) is not None) is written
    assert "can't start new thread" in warnings[1]


def test_an_outage_of_the_register_is_reported_once_also_where_it_answers_now_and_then() -> None:
    held, reports = HeldRegister(), list[str]()
    watched = WatchedRegister(ReachedRegister(held, "n"), reports.append)

    def is_away() -> None:
        held.away = {"n"}
        for _ in range(3 * MOST_UNANSWERED):
            with pytest.raises(RegisterUnreachable):
                watched.read()
        held.away = set()

    is_away()
    assert [re.sub(r"\d", "0", text) for text in reports] == [
        "the register that names the control store of the nodes has not answered since 00:00:00: away"
    ]
    assert watched.write("x", 0) == 1
    is_away()
    assert len(reports) == 1, "the same outage"
    for _ in range(LEAST_ANSWERED):
        watched.read()
    is_away()
    assert len(reports) == 2


class HangingRegister:
    """A register whose answer is still awaited when the follower is closed."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def read(self) -> Registered:
        """See Register."""
        self.asked.set()
        self.answers.wait(60)
        raise RegisterUnreachable("away")

    def write(self, value: str, version: int) -> int:  # noqa: ARG002  see Register
        """See Register."""
        raise RegisterUnreachable("away")


class ClosedServer:
    """Stands for a store that is served, and notes for how long it may linger."""

    serves = True

    def __init__(self) -> None:
        self.linger_s = -1.0

    def close(self, linger_s: float) -> None:
        """See StoreServer."""
        self.linger_s = linger_s


def test_a_register_that_hangs_takes_its_time_from_that_of_the_store_which_lingers() -> None:
    register, server = HangingRegister(), ClosedServer()
    client = NodeClient(NodeMemory("n0/1"), RULES, time.monotonic, lambda *_kept: None, lambda _output: None)
    follower = StoreFollower(register, client, RULES, "127.0.0.1", "", pytest.fail)
    client.start()
    follower.start()
    assert register.asked.wait(20)
    follower.server = server  # type: ignore[assignment]  # as far as it is used
    follower.close(0.3)
    register.answers.set()
    client.close(2.0)
    assert server.linger_s == 0.0, "the time was spent on the register"


@pytest.mark.parametrize(("kind", "is_over"), [(RESTART, False), (STOP, True)])
def test_a_node_goes_back_to_the_store_of_its_job_unless_that_life_of_the_job_is_over(kind: str, is_over: bool) -> None:  # noqa: FBT001
    memory = NodeMemory("a/1", Epoch(3, ("a/1", "b/1"), "b/1", "t"), "store", ClusterDecision(kind))
    kept = KeptNode(RUN, memory, StoreAddress("b", 4711, "key"))
    assert remembered(kept, RUN, "a/2") == ((NodeMemory("a/2"), None) if is_over else (memory, kept.address))
    assert remembered(kept, KeptFor("run", "job.1"), "a/2") == (NodeMemory("a/2"), None), "these nodes meet elsewhere"


@pytest.mark.parametrize(("me", "live"), [("a", 2), ("c", 0)])
def test_a_node_that_was_lost_does_not_know_how_many_come_to_the_next_meeting(me: str, live: int) -> None:
    """It is none of those that are left: where it counted itself as one of them, the round began without the slowest of them."""
    epoch, decision = Epoch(1, ("a", "b", "c"), "a", "token"), ClusterDecision(RESTART)
    rows = (epoch.row(), ("lost/1/c", "silent for 6 s"), ("decision/1", decision.value()))
    state, _ = node_step(new_node(NodeMemory(me, epoch, "store"), RULES, 0.0), protocol.StoreOpened(0.0))
    _, outputs = node_step(state, protocol.FromStore(1.0, protocol.StoreRows("store", "a", 0, 1, rows)))
    assert protocol.ActOn(epoch, decision, live) in outputs
