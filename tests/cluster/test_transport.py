"""The control store over real sockets: cut connections, peers that do not read, what is no message, and 64 nodes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, TypeVar

import pytest

from supervisor.cluster import messages as protocol
from supervisor.cluster.client import NodeClient, StoreAddress
from supervisor.cluster.lines import PAUSE_S
from supervisor.cluster.model import FAILURE, RESTART, STOP, ClusterDecision, ClusterRules
from supervisor.cluster.node import NodeMemory
from supervisor.cluster.server import StoreServer, listen
from supervisor.cluster.store import new_store
from tests.support.descriptors import no_descriptor_left
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = TypeVar("Kind")
KEY = "key of the job"
RULES = ClusterRules(nodes=3, beat_s=0.4, lease_s=6.0, disconnect_timeout_s=2.0, rejoin_window_s=12.0)


class Relay:
    """A way to the store that can be cut without a word, as a switch does."""

    def __init__(self, port: int) -> None:
        self._to, self.is_cut = port, False
        self._ends: list[socket.socket] = []
        self._listener = listen()
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._ends.append(near)
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.shutdown(socket.SHUT_RDWR)
                continue
            self._ends.append(far)
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                while self.is_cut:
                    time.sleep(0.02)
                target.sendall(data)
        except OSError:
            pass
        while self.is_cut:  # the end of a connection does not come through either
            time.sleep(0.02)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it."""
        self.is_cut = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._ends:
            end.close()


class Member:
    """A node with a loop that ticks, and what it was given to do."""

    def __init__(self, index: int, port: int, key: str = KEY, memory: NodeMemory | None = None, rules: ClusterRules = RULES) -> None:
        self.name = f"n{index}/1"
        self.done: list[protocol.NodeOutput] = []
        self.client = NodeClient(memory or NodeMemory(self.name), rules, time.monotonic, self._keep, self.done.append)
        self.kept: list[NodeMemory] = []
        self.index = index
        self.client.find_at(StoreAddress("127.0.0.1", port, key))
        self.client.start()
        self._ends = threading.Event()
        threading.Thread(target=self._tick, daemon=True).start()

    def _keep(self, memory: NodeMemory, _address: StoreAddress | None) -> None:
        self.kept.append(memory)

    def _tick(self) -> None:
        while not self._ends.wait(0.2):
            self.client.give(protocol.NodeTick(time.monotonic()))

    def stands_still(self) -> None:
        """Let its loop stand still, and so send no beat."""
        self._ends.set()

    def close(self) -> None:
        """End it."""
        self._ends.set()
        self.client.close(5.0)

    def meets(self, token: str, count: int, number: int = 1) -> None:
        """Its agent has met the others."""
        self.client.give(protocol.NodesTogether(time.monotonic(), token, self.index, count, number))

    def all_of(self, kind: type[Kind]) -> list[Kind]:
        """Return what it was given to do of one kind."""
        return [one for one in self.done if isinstance(one, kind)]


class Cluster:
    """A store and its nodes, each on a way of its own."""

    def __init__(self, nodes: int, rules: ClusterRules = RULES) -> None:
        self.rules = rules
        self.kept: list[tuple[tuple[str, str], ...]] = []
        self.server = self.serve("store 1")
        self.relays = [Relay(self.server.port) for _ in range(nodes)]
        self.members = [Member(index, relay.port, rules=rules) for index, relay in enumerate(self.relays)]

    def serve(self, name: str, port: int = 0, kept: tuple[tuple[str, str], ...] = ()) -> StoreServer:
        """Start a store."""
        state = new_store(name, "n0/1", self.rules, time.monotonic(), kept)
        server = StoreServer(listen(port), KEY, state, self.kept.append)
        server.start()
        return server

    def meet(self, number: int = 1) -> None:
        """Let all meet, and await the epoch."""
        token = f"meeting {number}"
        for member in self.members:
            member.meets(token, len(self.members), number)
        for member in self.members:
            wait_for(lambda member=member: any(one.epoch.token == token for one in member.all_of(protocol.EpochBegan)), "the epoch", 120)

    def close(self) -> None:
        """End all."""
        for member in self.members:
            member.close()
        self.server.close(0.0)
        for relay in self.relays:
            relay.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Return three nodes."""
    found = Cluster(3)
    yield found
    found.close()


def decide(member: Member, number: int, kind: str = RESTART) -> None:
    """Let a node report; the leader decides."""
    member.client.give(protocol.EpochReport(time.monotonic(), f"evidence of {member.name}"))
    if member.index == 0:
        wait_for(lambda: member.all_of(protocol.JudgeReports), "the reports", 10)
        member.client.give(protocol.DecisionProposed(time.monotonic(), number, ClusterDecision(kind, "by 0")))


def test_nodes_meet_agree_fail_and_act_on_one_decision(cluster: Cluster) -> None:
    cluster.meet()
    for member in cluster.members:
        member.client.give(protocol.NodeText(time.monotonic(), 1, f"of {member.index}"))
    for member in cluster.members:
        wait_for(lambda member=member: member.all_of(protocol.TextsGathered), "the texts", 10)
        assert member.all_of(protocol.TextsGathered)[0].texts == ("of 0", "of 1", "of 2")
    cluster.members[2].client.give(protocol.EndEpoch(time.monotonic(), FAILURE, "rank 2: exit code 1"))
    for member in cluster.members:
        wait_for(lambda member=member: member.all_of(protocol.EpochEnded), "the end", 10)
        assert member.all_of(protocol.EpochEnded)[0].end.node == "n2/1"
    for member in reversed(cluster.members):
        decide(member, 1)
    for member in cluster.members:
        wait_for(lambda member=member: member.all_of(protocol.ActOn), "the decision", 10)
        (acted,) = member.all_of(protocol.ActOn)
        assert acted.decision == ClusterDecision(RESTART, "by 0")
        assert member.kept[-1].acted == acted.decision, "kept before it was acted on"
    (judged,) = cluster.members[0].all_of(protocol.JudgeReports)
    assert [node for node, _ in judged.reports] == ["n0/1", "n1/1", "n2/1"]
    assert any(key == "decision/1" for key, _ in cluster.kept[-1])
    cluster.meet(2)
    assert cluster.members[0].all_of(protocol.EpochBegan)[-1].epoch.number == 2


def test_a_way_that_is_cut_for_less_than_a_lease_changes_nothing_and_one_cut_longer_loses_its_node(cluster: Cluster) -> None:
    cluster.meet()
    cluster.relays[1].is_cut = True
    time.sleep(RULES.beat_s * 1.5)
    cluster.relays[1].is_cut = False
    cluster.members[1].client.give(protocol.NodeText(time.monotonic(), 0, "began"))
    wait_for(lambda: cluster.members[0].all_of(protocol.PeerText), "its text", 10)
    assert not any(member.all_of(protocol.EpochEnded) for member in cluster.members)

    cluster.relays[2].is_cut = True
    wait_for(lambda: cluster.members[0].all_of(protocol.EpochEnded), "the end of the epoch", 20)
    assert "silent" in cluster.members[0].all_of(protocol.EpochEnded)[0].end.text
    wait_for(lambda: cluster.members[2].all_of(protocol.StoreSilent), "the lost node to notice it", 20)
    for member in reversed(cluster.members[:2]):
        decide(member, 1)
    cluster.relays[2].is_cut = False
    wait_for(lambda: cluster.members[2].all_of(protocol.ActOn), "the decision, over another connection", 20)


def test_a_store_without_a_descriptor_for_another_connection_serves_those_that_it_has_and_does_not_spin(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.meet()
    accept, tries = cluster.server._accept, list[float]()  # noqa: SLF001
    monkeypatch.setattr(cluster.server, "_accept", lambda: (tries.append(time.monotonic()), accept()))
    with socket.socket() as late:
        late.settimeout(20.0)
        with no_descriptor_left():
            late.connect(("127.0.0.1", cluster.server.port))
            wait_for(lambda: tries and time.monotonic() - tries[0] > 2.2 * PAUSE_S, "two pauses")
            assert len(tries) <= 4
            cluster.members[1].client.give(protocol.NodeText(time.monotonic(), 0, "began"))
            wait_for(lambda: cluster.members[0].all_of(protocol.PeerText), "its text", 10)
        late.sendall(b"no greeting\n")
        assert not late.recv(100), "it was accepted, and is no node"


@pytest.mark.slow
def test_a_node_whose_loop_stands_still_is_lost_and_one_whose_process_ends_sooner(cluster: Cluster) -> None:
    cluster.meet()
    cluster.members[1].stands_still()
    wait_for(lambda: cluster.members[0].all_of(protocol.EpochEnded), "the end", 20)
    for member in reversed(cluster.members):
        decide(member, 1)
    wait_for(lambda: all(member.all_of(protocol.ActOn) for member in cluster.members), "the decision", 20)
    cluster.members[1].close()
    cluster.members[1] = Member(1, cluster.relays[1].port, memory=cluster.members[1].kept[-1])
    cluster.meet(2)
    began = time.monotonic()
    cluster.members[2].close()
    wait_for(lambda: len(cluster.members[0].all_of(protocol.EpochEnded)) == 2, "the end", 20)
    assert "gone" in cluster.members[0].all_of(protocol.EpochEnded)[1].end.text
    assert time.monotonic() - began >= RULES.disconnect_timeout_s


def test_a_store_that_starts_again_at_its_port_goes_on_with_what_it_kept(cluster: Cluster) -> None:
    cluster.meet()
    cluster.server.close(0.0)
    cluster.members[1].client.give(protocol.EndEpoch(time.monotonic(), FAILURE, "it failed while the store was away"))
    cluster.server = cluster.serve("store 2", cluster.server.port, cluster.kept[-1])
    for member in cluster.members:
        wait_for(lambda member=member: member.all_of(protocol.EpochEnded), "the end", 20)
    for member in reversed(cluster.members):
        decide(member, 1)
    for member in cluster.members:
        wait_for(lambda member=member: member.all_of(protocol.ActOn), "the decision", 20)
        assert len(member.all_of(protocol.ActOn)) == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"supervise control store 1 another key\n",
        b"supervise control store 1 key of the job\nnonsense\n",
        b'supervise control store 1 key of the job\n["beat", {"node": "n0/1"}]\n',
        b'supervise control store 1 key of the job\n["beat", {"node": 7, "have": 0}]\n',
        b'supervise control store 1 key of the job\n["write", {"node": "n0/1", "key": "end/newest", "value": ""}]\n',
        b'supervise control store 1 key of the job\n["write", {"node": "n0/1", "key": "end", "value": ""}]\n',
        b"supervise control store 1 key of the job\n" + b"[" * 100_000 + b"\n",
        b"\x00" * 1000 + b"\n",
    ],
)
def test_who_sends_what_is_no_message_is_closed_and_the_nodes_do_not_notice(cluster: Cluster, sent: bytes) -> None:
    cluster.meet()
    with socket.create_connection(("127.0.0.1", cluster.server.port)) as stranger:
        stranger.sendall(sent)
        stranger.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert not stranger.recv(1)
    cluster.members[1].client.give(protocol.NodeText(time.monotonic(), 0, "began"))
    wait_for(lambda: cluster.members[0].all_of(protocol.PeerText), "a text", 10)
    assert not any(member.all_of(protocol.EpochEnded) for member in cluster.members)


def test_a_peer_that_reads_nothing_holds_nobody_up(cluster: Cluster) -> None:
    cluster.meet()
    deaf = socket.create_connection(("127.0.0.1", cluster.server.port))
    deaf.sendall(b'supervise control store 1 key of the job\n["hello",{"node":"n9/1"}]\n')
    for number in range(1, 9):
        for member in cluster.members:
            member.client.give(protocol.NodeText(time.monotonic(), number, "x" * 300_000))
        for member in cluster.members:
            wait_for(lambda member=member, number=number: len(member.all_of(protocol.TextsGathered)) == number, "the texts", 20)
    deaf.close()
    assert not any(member.all_of(protocol.EpochEnded) for member in cluster.members)


def test_the_host_of_the_store_stays_until_every_member_knows_how_the_job_ended(cluster: Cluster) -> None:
    cluster.meet()
    cluster.relays[2].is_cut = True  # while the others stop the job
    cluster.members[0].client.give(protocol.EndEpoch(time.monotonic(), FAILURE, "it failed"))
    for member in cluster.members[:2]:
        wait_for(lambda member=member: member.all_of(protocol.EpochEnded), "the end", 20)
    cluster.relays[2].is_cut = False
    for member in reversed(cluster.members):
        decide(member, 1, STOP)
    wait_for(lambda: cluster.members[0].all_of(protocol.ActOn), "the decision", 20)
    cluster.server.close(15.0)
    assert all(member.all_of(protocol.ActOn) for member in cluster.members)


def test_the_host_of_the_store_that_is_stopped_stays_until_the_others_have_decided_what_comes_after_it(cluster: Cluster) -> None:
    cluster.meet()
    stopped, *others = cluster.members
    stopped.client.give(protocol.GiveUp(time.monotonic(), "stopped by SIGTERM"))
    stopped.close()
    closing = threading.Thread(target=cluster.server.close, args=(30.0,))
    closing.start()
    for member in others:
        wait_for(lambda member=member: member.all_of(protocol.EpochEnded), "the end", 20)
        member.client.give(protocol.EpochReport(time.monotonic(), f"evidence of {member.name}"))
    assert {member.all_of(protocol.EpochEnded)[0].end.node for member in others} == {stopped.name}
    wait_for(lambda: others[0].all_of(protocol.JudgeReports), "the reports", 20)
    assert closing.is_alive()
    others[0].client.give(protocol.DecisionProposed(time.monotonic(), 1, ClusterDecision(RESTART, "by 1")))
    closing.join(20)
    assert not closing.is_alive(), "it stays no longer"
    assert [[one.decision.text for one in member.all_of(protocol.ActOn)] for member in others] == [["by 1"], ["by 1"]]


def test_a_thread_that_cannot_be_had_for_a_moment_costs_a_node_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, real = {"find-store"}, threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name in refused:
            refused.discard(thread.name)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    cluster = Cluster(1)
    cluster.meet()
    cluster.close()
    assert not refused


def test_the_clocks_are_compared_over_the_stores_answers(cluster: Cluster) -> None:
    cluster.meet()
    offset_s = wait_for(lambda: (cluster.members[1].client.offset_s,)[cluster.members[1].client.offset_s is None :], "an answer", 10)[0]
    assert offset_s is not None
    assert abs(offset_s) < 0.5, "one machine has one clock"


@pytest.mark.slow
def test_64_nodes_meet_agree_and_decide() -> None:
    cluster = Cluster(64, ClusterRules(nodes=64, lease_s=60.0))
    try:
        cluster.meet()
        for number in (1, 2, 3):
            for member in cluster.members:
                member.client.give(protocol.NodeText(time.monotonic(), number, "x" * 4000))
            for member in cluster.members:
                wait_for(lambda member=member, number=number: len(member.all_of(protocol.TextsGathered)) >= number, "the texts", 120)
        cluster.members[63].client.give(protocol.EndEpoch(time.monotonic(), FAILURE, "rank 63"))
        for member in reversed(cluster.members):
            decide(member, 1)
        for member in cluster.members:
            wait_for(lambda member=member: member.all_of(protocol.ActOn), "the decision", 120)
    finally:
        cluster.close()
