"""The coordinator over real sockets: connections that are cut, closed and refused, peers that do not read, long messages, and 64 nodes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import IO, TYPE_CHECKING, TypeVar

import pytest

from supervisor.cluster import lines, wire
from supervisor.cluster import messages as protocol
from supervisor.cluster.client import CoordinatorAddress, NodeClient
from supervisor.cluster.coordinator import new_coordinator
from supervisor.cluster.lines import PAUSE_S, UNREACHABLE_S, LineSocket
from supervisor.cluster.model import FAILURE, RESTART, STOP, ClusterDecision, ClusterRules, CoordinatorMemory, NodeMemory
from supervisor.cluster.server import CoordinatorServer, listen
from supervisor.version import __version__
from tests.cluster.crowd import figures
from tests.guardian.conftest import Side
from tests.support.descriptors import no_descriptor_left
from tests.support.figures import is_within
from tests.support.network import Network
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from supervisor.cluster.coordinator import CoordinatorOutput

Kind = TypeVar("Kind")
KEY = "key"
RULES = ClusterRules(nodes=3, beat_s=0.4, closed_s=5.0, closed_after_end_s=1.0, silent_s=4.0, rejoin_s=12.0)


class Relay:
    """A way to the coordinator over which nothing comes while `is_cut`, and no connection is let in while `is_closed`."""

    def __init__(self, port: int) -> None:
        self._to, self.is_cut, self.is_closed = port, False, False
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
            if self.is_closed:
                near.shutdown(socket.SHUT_RDWR)
                continue
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

    def reset(self) -> None:
        """End every connection."""
        for end in self._ends:
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
        self.done: list[object] = []
        self.client = NodeClient(memory or NodeMemory(self.name), rules, time.monotonic, self._keep, self.done.append)
        self.kept: list[NodeMemory] = []
        self.index = index
        self.client.find_at(CoordinatorAddress("127.0.0.1", port, key))
        self.client.start()
        self._ends = threading.Event()
        threading.Thread(target=self._tick, daemon=True).start()

    def _keep(self, memory: NodeMemory, _address: CoordinatorAddress | None) -> None:
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

    def says(self, text: str) -> None:
        """Tell the others how its ranks began."""
        self.client.give(protocol.NodeText(time.monotonic(), 0, text))

    def all_of(self, kind: type[Kind]) -> list[Kind]:
        """Return what it was given to do of one kind."""
        return [output for output in self.done if isinstance(output, kind)]


class Cluster:
    """A coordinator and its nodes, each on a way of its own."""

    def __init__(self, nodes: int, rules: ClusterRules = RULES) -> None:
        self.rules = rules
        self.kept: list[CoordinatorMemory] = []
        self.asked: list[CoordinatorOutput] = []  # of the core of the coordinator
        self.warned: list[str] = []
        self.server = self.serve()
        self.relays = [Relay(self.server.port) for _ in range(nodes)]
        self.members = [Member(index, relay.port, rules=rules) for index, relay in enumerate(self.relays)]

    def serve(self, port: int = 0, memory: CoordinatorMemory = CoordinatorMemory()) -> CoordinatorServer:  # noqa: B008  it is frozen
        """Start a coordinator."""
        state = new_coordinator("n0/1", self.rules, time.monotonic(), memory)
        server = CoordinatorServer(listen(port), KEY, state, time.monotonic, self.kept.append, self.asked.append, self.warned.append)
        server.start()
        return server

    def meet(self, number: int = 1) -> None:
        """Let all meet, and await the epoch."""
        token = f"meeting {number}"
        for member in self.members:
            member.meets(token, len(self.members), number)
        for member in self.members:
            wait_for(
                lambda member=member: any(began.epoch.token == token for began in member.all_of(protocol.EpochBegan)), "the epoch", 120
            )

    def judged(self) -> list[protocol.JudgeReports]:
        """Return what the core was asked to judge."""
        return [output for output in self.asked if isinstance(output, protocol.JudgeReports)]

    def decide(self, members: list[Member], number: int = 1, kind: str = RESTART) -> None:
        """Let these report, the core decide, and all of them act on it."""
        for member in members:
            wait_for(lambda member=member: member.all_of(protocol.EpochEnded), "the end", 20)
            member.client.give(protocol.EpochReport(time.monotonic(), f"evidence of {member.name}"))
        wait_for(lambda: any(asked.number == number for asked in self.judged()), "the reports", 20)
        self.server.give(protocol.DecisionProposed(time.monotonic(), number, ClusterDecision(kind, "by the core")))
        for member in members:
            wait_for(lambda member=member: any(acted.epoch.number == number for acted in member.all_of(protocol.ActOn)), "the decision", 20)

    def is_well(self) -> None:
        """Show that what one node says reaches the others, and that no epoch has ended."""
        text = f"began {time.monotonic()}"
        self.members[1].says(text)
        wait_for(lambda: self.members[0].all_of(protocol.PeerText), "its text", 10)
        assert not any(member.all_of(protocol.EpochEnded) for member in self.members)

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
    nodes = Cluster(3)
    yield nodes
    nodes.close()


def greeted(port: int, sent: bytes = b"") -> socket.socket:
    """Return a connection that has greeted, and sent this."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.settimeout(20.0)
    sock.sendall(b"".join(wire.greeting(KEY)) + sent)
    return sock


def reached(cluster: Cluster, node: str) -> bool:
    """Whether the connection of a node is open, as the coordinator has it."""
    with greeted(cluster.server.port, b"".join(wire.encode(protocol.Ask()))) as sock, sock.makefile("rb") as file:
        known = wire.to_reader(file.readline()[1:-1])
    assert isinstance(known, protocol.KnownNodes)
    return any(one.node == node and one.reached for one in known.nodes)


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
    cluster.decide(cluster.members[::-1])
    for member in cluster.members:
        (acted,) = member.all_of(protocol.ActOn)
        assert acted.decision == ClusterDecision(RESTART, "by the core")
        assert member.kept[-1].acted == acted.decision, "kept before it was acted on"
    (judged,) = cluster.judged()
    assert [node for node, _ in judged.reports] == ["n0/1", "n1/1", "n2/1"]
    assert cluster.kept[-1].decision == ClusterDecision(RESTART, "by the core")
    cluster.meet(2)
    assert cluster.members[0].all_of(protocol.EpochBegan)[-1].epoch.number == 2


@pytest.mark.parametrize("away_s", [1.0, pytest.param(3.5, marks=pytest.mark.slow)])
def test_a_way_that_is_closed_for_some_seconds_is_no_lost_node(cluster: Cluster, away_s: float) -> None:
    """As by a firewall whose table of states was cleared."""
    cluster.meet()
    relay = cluster.relays[1]
    relay.is_closed = True
    relay.reset()
    time.sleep(away_s)  # it is what is tested
    assert not reached(cluster, "n1/1")
    relay.is_closed = False
    wait_for(lambda: reached(cluster, "n1/1"), "the node to connect again", 10)
    cluster.is_well()


def test_a_node_says_again_over_its_next_connection_what_it_said(cluster: Cluster) -> None:
    cluster.meet()
    cluster.relays[1].is_cut = True
    cluster.members[1].client.give(protocol.NodeText(time.monotonic(), 1, "of 1"))  # it is on the way, and gets lost
    wait_for(lambda: not cluster.members[1].client._inbox._given, "its words to be sent", 10)  # noqa: SLF001
    for member in (cluster.members[0], cluster.members[2]):
        member.client.give(protocol.NodeText(time.monotonic(), 1, f"of {member.index}"))
    before, cluster.relays[1] = cluster.relays[1], Relay(cluster.server.port)
    cluster.members[1].client.find_at(CoordinatorAddress("127.0.0.1", cluster.relays[1].port, KEY))
    for member in cluster.members:
        wait_for(lambda member=member: member.all_of(protocol.TextsGathered), "the texts", 10)
        assert [gathered.texts for gathered in member.all_of(protocol.TextsGathered)] == [("of 0", "of 1", "of 2")]
    before.close()


@pytest.mark.slow
def test_a_node_that_is_connected_and_silent_for_long_is_lost_and_learns_the_decision_later(cluster: Cluster) -> None:
    cluster.meet()
    cluster.relays[2].is_cut = True
    wait_for(lambda: cluster.members[0].all_of(protocol.EpochEnded), "the end of the epoch", 20)
    assert "silent" in cluster.members[0].all_of(protocol.EpochEnded)[0].end.text
    wait_for(lambda: cluster.members[2].all_of(protocol.CoordinatorSilent), "the lost node to notice it", 20)
    cluster.decide(cluster.members[1::-1])
    cluster.relays[2].is_cut = False
    wait_for(lambda: cluster.members[2].all_of(protocol.ActOn), "the decision", 20)


@pytest.mark.slow
def test_a_node_whose_loop_stands_still_is_lost_and_so_is_one_whose_process_ends(cluster: Cluster) -> None:
    cluster.meet()
    cluster.members[1].stands_still()
    wait_for(lambda: cluster.members[0].all_of(protocol.EpochEnded), "the end", 20)
    cluster.decide(cluster.members)
    cluster.members[1].close()
    cluster.members[1] = Member(1, cluster.relays[1].port, memory=cluster.members[1].kept[-1])
    cluster.meet(2)
    began = time.monotonic()
    cluster.members[2].close()
    wait_for(lambda: len(cluster.members[0].all_of(protocol.EpochEnded)) == 2, "the end", 20)
    assert "cannot be reached" in cluster.members[0].all_of(protocol.EpochEnded)[1].end.text
    assert time.monotonic() - began >= RULES.closed_s


@pytest.mark.process
def test_the_word_of_a_guardian_loses_its_node_at_once(cluster: Cluster, tmp_path: Path) -> None:
    """A real kill -9 of the supervisor of a node, whose guardian lives on."""
    cluster.meet()
    side = Side(tmp_path)
    try:
        side.call("last_word", "127.0.0.1", cluster.server.port, wire.last_word(KEY, "n1/1"))
        side.call("tails", 1)
        side.wait("tails")
        began = time.monotonic()
        cluster.members[1].close()
        side.process.kill()
        wait_for(lambda: cluster.members[0].all_of(protocol.EpochEnded), "the end", 20)
    finally:
        side.close()
    assert time.monotonic() - began < RULES.closed_s
    end = cluster.members[0].all_of(protocol.EpochEnded)[0].end
    assert (end.node, end.text) == ("n1/1", "its supervise died, and its processes are ended")


def test_the_word_of_a_guardian_changes_nothing_where_another_supervisor_of_its_node_is_connected(cluster: Cluster) -> None:
    cluster.meet()
    with greeted(cluster.server.port, b"".join(wire.encode(protocol.Gone("n1/1")))) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert not sock.recv(100)
    cluster.is_well()


#: A node in a process of its own, that says when it is connected: its address and port are its arguments.
NODE = """
import sys, time
from supervisor.cluster.client import CoordinatorAddress, NodeClient
from supervisor.cluster.messages import FromCoordinator, NodeTick
from supervisor.cluster.model import ClusterRules, NodeMemory
client = NodeClient(NodeMemory("far/1"), ClusterRules(beat_s=0.4), time.monotonic, lambda *_: None, print)
client.find_at(CoordinatorAddress(sys.argv[1], int(sys.argv[2]), "key"))
client.start()
while True:
    client.give(NodeTick(time.monotonic()))
    time.sleep(0.2)
"""


@pytest.mark.process
@pytest.mark.parametrize("limit_s", [1, pytest.param(UNREACHABLE_S, marks=pytest.mark.slow)])
def test_a_stopped_process_of_a_host_that_can_be_reached_keeps_its_connection(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, limit_s: int
) -> None:
    monkeypatch.setattr(lines, "UNREACHABLE_S", limit_s)
    node = subprocess.Popen([sys.executable, "-c", NODE, "127.0.0.1", str(cluster.server.port)])  # noqa: S603  our own
    try:
        wait_for(lambda: reached(cluster, "far/1"), "the node", 20)
        connection = cluster.server._of_node["far/1"]  # noqa: SLF001
        os.kill(node.pid, signal.SIGSTOP)
        time.sleep(2.0 * limit_s)  # it is what is tested
        assert cluster.server._of_node["far/1"] is connection  # noqa: SLF001
    finally:
        node.kill()
        node.wait()


@pytest.mark.parametrize("limit_s", [1, pytest.param(UNREACHABLE_S, marks=pytest.mark.slow)])
def test_a_peer_that_takes_nothing_any_more_is_no_host_that_vanished(monkeypatch: pytest.MonkeyPatch, limit_s: int) -> None:
    monkeypatch.setattr(lines, "UNREACHABLE_S", limit_s)
    with listen() as listener:
        near = LineSocket(socket.create_connection(("127.0.0.1", listener.getsockname()[1])), 100)
        far, _ = listener.accept()
    near.put(lines.in_lines(b"x" * 30_000_000))
    until_t = time.monotonic() + 2.2 * limit_s
    while time.monotonic() < until_t:
        near.flush()
        assert list(near.messages()) == []
        assert near.has_unsent
        assert not near.is_unreachable
        time.sleep(0.1)  # it is the time that is tested
    near.close()
    far.close()


#: One end of a connection in a network namespace, that says how it ended.
END = """
import socket, sys
from supervisor.cluster import lines
lines.UNREACHABLE_S = int(sys.argv[2])
if sys.argv[1] == "server":
    listener = socket.create_server(("10.7.0.1", 4711))
    print("up", flush=True)
    sock, _ = listener.accept()
else:
    sock = socket.create_connection(("10.7.0.1", 4711))
connection = lines.LineSocket(sock, 100)
sock.settimeout(0.2)
print("connected", flush=True)
is_over = False
while not is_over:
    if sys.argv[3] == "talks":
        connection.put(lines.in_lines(b"hello"))
        connection.flush()
    try:
        is_over = connection.is_unreachable
        list(connection.messages())
    except TimeoutError as error:
        is_over = is_over or error.errno is not None  # the kernel's, not that of the socket
print("unreachable", flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize("limit_s", [1, pytest.param(UNREACHABLE_S, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["is silent", "talks", "hears, and is not heard"])
def test_a_host_that_vanishes_without_a_word_is_noticed_on_both_sides_within_ten_seconds(limit_s: int, how: str) -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        network = Network(2)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr[-200:]}")
    ends = list[subprocess.Popen[str]]()

    def end(role: str, namespace: str) -> IO[str]:
        words = ["ip", "netns", "exec", namespace, sys.executable, "-c", END, role, str(limit_s), how]
        ends.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))  # noqa: S603  our own
        assert ends[-1].stdout is not None
        return ends[-1].stdout

    try:
        server = end("server", network.names[0])
        assert server.readline() == "up\n"
        client = end("client", network.names[1])
        assert [server.readline(), client.readline()] == ["connected\n", "connected\n"]
        if how == "hears, and is not heard":
            network.lose_way(1, 0)
        else:
            network.cut(1)
        began = time.monotonic()
        assert [server.readline(), client.readline()] == ["unreachable\n", "unreachable\n"]
        assert time.monotonic() - began < 10.0
    finally:
        for process in ends:
            process.kill()
            process.communicate()
        network.close()


def test_a_coordinator_without_a_descriptor_for_another_connection_serves_those_that_it_has_and_does_not_spin(
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
            cluster.is_well()
        late.sendall(b"no greeting\n")
        assert not late.recv(100), "it was accepted, and is no node"


def test_a_coordinator_that_starts_again_at_its_port_goes_on_with_what_it_kept(cluster: Cluster) -> None:
    cluster.meet()
    cluster.server.close(0.0)
    cluster.members[1].client.give(protocol.EndEpoch(time.monotonic(), FAILURE, "it failed while the coordinator was away"))
    cluster.server = cluster.serve(cluster.server.port, cluster.kept[-1])
    cluster.decide(cluster.members[::-1])
    for member in cluster.members:
        assert len(member.all_of(protocol.ActOn)) == 1


GREETING = b"supervise coordinator 2 key\n"
JOIN = b'.{"type":"join","node":"n9/1"}\n'


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        GREETING + b"nonsense\n",
        GREETING + b'.{"type":"beat"}\n',
        GREETING + b'.{"type":"join","node":7}\n',
        GREETING + JOIN + JOIN,
        GREETING + JOIN + b'.{"type":"post","number":"1","kind":"end"}\n',
        GREETING + JOIN + b'.{"type":"welcome","host":"n9/1"}\n',
        GREETING + b"." + b"[" * 100_000 + b"\n",
        GREETING + b"." + b"x" * 300_000,
        b"\x00" * 1000 + b"\n",
    ],
)
def test_who_sends_what_is_no_message_is_closed_and_the_nodes_do_not_notice(cluster: Cluster, sent: bytes) -> None:
    cluster.meet()
    with socket.create_connection(("127.0.0.1", cluster.server.port)) as stranger:
        stranger.settimeout(10)
        with contextlib.suppress(ConnectionError):  # reset, as what it sent is not read to the end
            stranger.sendall(sent)
            while stranger.recv(65536):
                pass
    cluster.is_well()
    assert not cluster.warned


@pytest.mark.parametrize(
    ("version", "key", "reason"),
    [
        ("3", KEY, "speaks version 3 of the protocol between nodes, {} speaks version 2: install the same supervise on all nodes"),
        ("2", "stolen", "speaks version 2 of the protocol between nodes, like {}, but is of another job"),
    ],
)
def test_a_node_of_another_version_or_job_is_told_so_once_and_tries_no_more(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, version: str, key: str, reason: str
) -> None:
    cluster.meet()
    greeting = wire.greeting
    monkeypatch.setattr(wire, "greeting", lambda key: greeting(key, version))
    stranger = Member(7, cluster.server.port, key)
    for _ in range(2):
        wait_for(lambda: stranger.all_of(protocol.Refused), "the refusal", 10)
        time.sleep(0.7)  # longer than between two tries
    (refused,) = stranger.all_of(protocol.Refused)
    stranger.close()
    assert reason.format(f"the coordinator on {socket.gethostname()} (supervise {__version__})") in refused.text
    assert key not in refused.text.split()
    assert cluster.warned == [f"refused: {refused.text}"]
    cluster.is_well()


def test_long_reports_come_whole(cluster: Cluster) -> None:
    cluster.meet()
    cluster.members[1].client.give(protocol.EndEpoch(time.monotonic(), FAILURE, "rank 1"))
    text = '"' * 1_900_000  # twice as long in JSON
    for member in cluster.members:
        wait_for(lambda member=member: member.all_of(protocol.EpochEnded), "the end", 20)
        member.client.give(protocol.EpochReport(time.monotonic(), text))
    wait_for(cluster.judged, "the reports", 20)
    assert [report for _, report in cluster.judged()[0].reports] == [text] * 3


def test_a_beat_overtakes_a_long_report() -> None:
    text = "x" * 3_000_000
    with listen() as listener:
        near = socket.create_connection(("127.0.0.1", listener.getsockname()[1]))
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        ends = [LineSocket(sock, wire.LONGEST_OF_A_NODE) for sock in (near, listener.accept()[0])]
    ends[0].put(wire.encode(protocol.Post(1, "report", text)))
    ends[0].flush()
    assert ends[0].has_unsent
    ends[0].put(wire.encode(protocol.Beat(7.0)), overtakes=True)
    messages = list[protocol.ToCoordinator]()
    while len(messages) < 2:
        ends[0].flush()
        messages += map(wire.to_coordinator, ends[1].messages())
    assert messages == [protocol.Beat(7.0), protocol.Post(1, "report", text)]
    for end in ends:
        end.close()


def test_a_message_that_is_too_long_is_refused_with_a_sentence_and_not_sent_again(cluster: Cluster) -> None:
    cluster.meet()
    cluster.members[1].client.give(protocol.NodeText(time.monotonic(), 1, "x" * (wire.LONGEST_OF_A_NODE + 1)))
    (refused,) = wait_for(lambda: cluster.members[1].all_of(protocol.Refused), "the refusal", 10)
    assert f"sent a message of more than {wire.LONGEST_OF_A_NODE} bytes" in refused.text
    time.sleep(0.7)  # longer than between two tries
    assert cluster.warned == [f"refused: {refused.text}"]


def test_a_peer_that_reads_nothing_holds_nobody_up(cluster: Cluster) -> None:
    cluster.meet()
    deaf = greeted(cluster.server.port, JOIN)
    for number in range(1, 9):
        for member in cluster.members:
            member.client.give(protocol.NodeText(time.monotonic(), number, "x" * 300_000))
        for member in cluster.members:
            wait_for(lambda member=member, number=number: len(member.all_of(protocol.TextsGathered)) == number, "the texts", 20)
    deaf.close()
    assert not any(member.all_of(protocol.EpochEnded) for member in cluster.members)


def test_the_host_of_the_coordinator_stays_until_every_member_knows_how_the_job_ended(cluster: Cluster) -> None:
    cluster.meet()
    cluster.members[0].client.give(protocol.EndEpoch(time.monotonic(), FAILURE, "it failed"))
    for member in cluster.members:
        wait_for(lambda member=member: member.all_of(protocol.EpochEnded), "the end", 20)
        member.client.give(protocol.EpochReport(time.monotonic(), "evidence"))
    wait_for(cluster.judged, "the reports", 20)
    cluster.relays[2].is_cut = True  # while the others stop the job
    cluster.server.give(protocol.DecisionProposed(time.monotonic(), 1, ClusterDecision(STOP, "by the core")))
    for member in cluster.members[:2]:
        wait_for(lambda member=member: member.all_of(protocol.ActOn), "the decision", 20)
    closing = threading.Thread(target=cluster.server.close, args=(15.0,))
    closing.start()
    closing.join(0.7)
    assert closing.is_alive(), "one does not know it yet"
    cluster.relays[2].is_cut = False
    closing.join(20)
    assert all(member.all_of(protocol.ActOn) for member in cluster.members)


def test_the_host_of_the_coordinator_that_is_stopped_stays_until_its_core_has_decided_what_comes_after_it(cluster: Cluster) -> None:
    cluster.meet()
    stopped, *others = cluster.members
    stopped.client.give(protocol.GiveUp(time.monotonic(), "stopped by SIGTERM"))
    stopped.close()
    closing = threading.Thread(target=cluster.server.close, args=(30.0,))
    closing.start()
    for member in others:
        wait_for(lambda member=member: member.all_of(protocol.EpochEnded), "the end", 20)
    assert {member.all_of(protocol.EpochEnded)[0].end.node for member in others} == {stopped.name}
    assert closing.is_alive()
    cluster.decide(others)
    closing.join(20)
    assert not closing.is_alive(), "it stays no longer"
    assert [[acted.decision.text for acted in member.all_of(protocol.ActOn)] for member in others] == [["by the core"], ["by the core"]]


def test_a_thread_that_cannot_be_had_for_a_moment_costs_a_node_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, real = {"find-coordinator"}, threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name in refused:
            refused.discard(thread.name)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    cluster = Cluster(1, replace(RULES, nodes=1))
    cluster.meet()
    cluster.close()
    assert not refused


def test_the_clocks_are_compared_over_the_coordinators_answers(cluster: Cluster) -> None:
    cluster.meet()
    offset_s = wait_for(lambda: (cluster.members[1].client.offset_s,)[cluster.members[1].client.offset_s is None :], "an answer", 10)[0]
    assert offset_s is not None
    assert abs(offset_s) < 0.5, "one machine has one clock"


def test_the_standings_of_connected_nodes_are_at_hand(cluster: Cluster) -> None:
    cluster.meet()
    cluster.members[1].client.give(protocol.NodeTick(time.monotonic() + RULES.beat_s, "step 7"))
    wait_for(lambda: cluster.server.standings().get("n1/1") == "step 7", "its standing", 10)


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("nodes", "report_bytes"),
    [
        (64, 37_000),
        pytest.param(120, 148_000, marks=pytest.mark.slow),  # after a storm of time-outs of NCCL
        pytest.param(1000, 52_000, marks=pytest.mark.slow),  # more than a node of 8 ranks reports
    ],
)
def test_a_crowd_is_judged_on_reports_of_their_true_size_within_three_seconds_and_300_mib(nodes: int, report_bytes: int) -> None:
    """All of them at once, on two cores that the nodes of the test use too."""
    times, numbers = figures(nodes, report_bytes)
    assert (numbers["judged0"], numbers["judged1"]) == (nodes, 0)
    assert is_within(times["judged"] - times["reported"], 3.0)
    assert numbers["peak0"] <= 300
