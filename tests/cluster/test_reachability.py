"""When a node is lost over real sockets: connections that are closed, hosts that vanish, processes that stop, a guardian's word."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from typing import IO, TYPE_CHECKING

import pytest

from supervisor.cluster import lines, wire
from supervisor.cluster import messages as protocol
from supervisor.cluster.client import CoordinatorAddress
from supervisor.cluster.lines import UNREACHABLE_S, LineSocket
from supervisor.cluster.server import listen
from tests.cluster.loopback import KEY, RULES, Cluster, Member, Relay, greeted, reached
from tests.guardian.conftest import Side
from tests.support.figures import within
from tests.support.network import Network
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_way_that_is_cut_for_a_moment_changes_nothing(cluster: Cluster) -> None:
    cluster.meet()
    cluster.relays[1].is_cut = True
    time.sleep(RULES.beat_s * 1.5)
    cluster.relays[1].is_cut = False
    cluster.is_well()


def test_a_node_repeats_its_message_over_the_next_connection(cluster: Cluster) -> None:
    cluster.meet()
    cluster.relays[1].is_cut = True
    cluster.members[1].client.give(protocol.NodeText(time.monotonic(), 1, "of 1"))  # it is on the way, and gets lost
    wait_for(lambda: not cluster.members[1].client._inbox._items, "its words to be sent", 10)  # noqa: SLF001
    for member in (cluster.members[0], cluster.members[2]):
        member.client.give(protocol.NodeText(time.monotonic(), 1, f"of {member.index}"))
    before, cluster.relays[1] = cluster.relays[1], Relay(cluster.server.port)
    cluster.members[1].client.find_at(CoordinatorAddress("127.0.0.1", cluster.relays[1].port, KEY))
    for member in cluster.members:
        wait_for(lambda member=member: member.all_of(protocol.Gathered), "the texts", 10)
        assert [gathered.texts for gathered in member.all_of(protocol.Gathered)] == [("of 0", "of 1", "of 2")]
    before.close()


@pytest.mark.slow
def test_a_node_that_is_connected_and_silent_for_long_is_lost_and_learns_the_decision_later(cluster: Cluster) -> None:
    cluster.meet()
    cluster.relays[2].is_cut = True
    wait_for(lambda: cluster.members[0].all_of(protocol.Ended), "the end of the attempt", 20)
    assert "silent" in cluster.members[0].all_of(protocol.Ended)[0].end.text
    wait_for(lambda: cluster.members[2].all_of(protocol.CoordinatorSilent), "the lost node to notice it", 20)
    cluster.decide(cluster.members[1::-1])
    cluster.relays[2].is_cut = False
    wait_for(lambda: cluster.members[2].all_of(protocol.ActOn), "the decision", 20)


@pytest.mark.slow
def test_a_node_whose_loop_stands_still_is_lost_and_so_is_one_whose_process_ends(cluster: Cluster) -> None:
    cluster.meet()
    cluster.members[1].stands_still()
    wait_for(lambda: cluster.members[0].all_of(protocol.Ended), "the end", 20)
    cluster.decide(cluster.members)
    cluster.members[1].close()
    cluster.members[1] = Member(1, cluster.relays[1].port, memory=cluster.members[1].kept[-1])
    cluster.meet(2)
    began = time.monotonic()
    cluster.members[2].close()
    wait_for(lambda: len(cluster.members[0].all_of(protocol.Ended)) == 2, "the end", 20)
    assert "it has not answered for 5 s" in cluster.members[0].all_of(protocol.Ended)[1].end.text
    assert time.monotonic() - began >= RULES.closed_s


@pytest.mark.process
@pytest.mark.parametrize("cluster", [replace(RULES, closed_s=60.0)], indirect=True, ids=["long before it would be lost without"])
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
        wait_for(lambda: cluster.members[0].all_of(protocol.Ended), "the end")
    finally:
        side.close()
    assert time.monotonic() - began < cluster.rules.closed_s
    end = cluster.members[0].all_of(protocol.Ended)[0].end
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
    except OSError as error:
        is_over = is_over or error.errno is not None  # the kernel's, or a reset; not that of the socket
print("unreachable", flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize("limit_s", [1, pytest.param(UNREACHABLE_S, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["is silent", "talks", "hears, and is not heard"])
def test_a_host_that_vanishes_without_a_word_is_noticed_on_both_sides_within_ten_seconds(limit_s: int, how: str) -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs network namespaces: run as root, with `ip` (Debian: apt-get install iproute2)")
    try:
        network = Network(2)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs network namespaces, which cannot be made here (in a container: --privileged): {error.stderr[-200:]}")
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
        assert within(10.0, since=began)
    finally:
        for process in ends:
            process.kill()
            process.communicate()
        network.close()
