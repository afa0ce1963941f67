"""The coordinator over real sockets: connections that are refused, peers that do not read, long messages, its end, and many nodes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import replace

import pytest

from supervisor.cluster import messages as protocol
from supervisor.cluster import wire
from supervisor.cluster.lines import PAUSE_S, LineSocket
from supervisor.cluster.model import FAILURE, RESTART, STOP, ClusterDecision, ClusterRules
from supervisor.cluster.server import listen
from supervisor.version import __version__
from tests.cluster.crowd import figures
from tests.cluster.loopback import KEY, RULES, Cluster, Member, greeted
from tests.support.descriptors import no_descriptor_left
from tests.support.figures import is_within
from tests.support.waiting import PATIENCE_S, wait_for


def test_nodes_meet_agree_fail_and_act_on_one_decision(cluster: Cluster) -> None:
    cluster.meet()
    for member in cluster.members:
        member.client.give(protocol.NodeText(time.monotonic(), 1, f"of {member.index}"))
    for member in cluster.members:
        wait_for(lambda member=member: member.all_of(protocol.Gathered), "the texts", 10)
        assert member.all_of(protocol.Gathered)[0].texts == ("of 0", "of 1", "of 2")
    cluster.members[2].client.give(protocol.EndAttempt(time.monotonic(), FAILURE, "rank 2: exit code 1"))
    for member in cluster.members:
        wait_for(lambda member=member: member.all_of(protocol.Ended), "the end", 10)
        assert member.all_of(protocol.Ended)[0].end.node == "n2/1"
    cluster.decide(cluster.members[::-1])
    for member in cluster.members:
        (acted,) = member.all_of(protocol.ActOn)
        assert acted.decision == ClusterDecision(RESTART, "by the core")
        assert member.kept[-1].acted == acted.decision, "kept before it was acted on"
    (judged,) = cluster.judged()
    assert [node for node, _ in judged.reports] == ["n0/1", "n1/1", "n2/1"]
    assert cluster.kept[-1].decision == ClusterDecision(RESTART, "by the core")
    cluster.meet(2)
    assert cluster.members[0].all_of(protocol.Began)[-1].attempt.number == 2


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


def test_a_restarted_coordinator_continues_at_its_port_with_its_state(cluster: Cluster) -> None:
    cluster.meet()
    cluster.server.close(0.0)
    cluster.members[1].client.give(protocol.EndAttempt(time.monotonic(), FAILURE, "it failed while the coordinator was away"))
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
def test_an_invalid_message_closes_its_sender_without_harm_to_the_nodes(cluster: Cluster, sent: bytes) -> None:
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
def test_a_node_of_another_version_or_job_is_refused_once_and_stops_trying(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, version: str, key: str, reason: str
) -> None:
    cluster.meet()
    greeting = wire.greeting
    monkeypatch.setattr(wire, "greeting", lambda key: greeting(key, version))
    stranger = Member(7, cluster.server.port, key)
    for _ in range(2):
        wait_for(lambda: stranger.all_of(protocol.Refusal), "the refusal", 10)
        time.sleep(0.7)  # longer than between two tries
    (refused,) = stranger.all_of(protocol.Refusal)
    stranger.close()
    assert reason.format(f"the coordinator on {socket.gethostname()} (supervise {__version__})") in refused.text
    assert key not in refused.text.split()
    assert cluster.warned == [f"refused: {refused.text}"]
    cluster.is_well()


def test_long_reports_come_whole(cluster: Cluster) -> None:
    cluster.meet()
    cluster.members[1].client.give(protocol.EndAttempt(time.monotonic(), FAILURE, "rank 1"))
    text = '"' * 1_900_000  # twice as long in JSON
    for member in cluster.members:
        wait_for(lambda member=member: member.all_of(protocol.Ended), "the end", 20)
        member.client.give(protocol.AttemptReport(time.monotonic(), text))
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
    (refused,) = wait_for(lambda: cluster.members[1].all_of(protocol.Refusal), "the refusal", 10)
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
            wait_for(lambda member=member, number=number: len(member.all_of(protocol.Gathered)) == number, "the texts", 20)
    deaf.close()
    assert not any(member.all_of(protocol.Ended) for member in cluster.members)


def test_the_host_of_the_coordinator_stays_until_every_member_knows_how_the_job_ended(cluster: Cluster) -> None:
    cluster.meet()
    cluster.members[0].client.give(protocol.EndAttempt(time.monotonic(), FAILURE, "it failed"))
    for member in cluster.members:
        wait_for(lambda member=member: member.all_of(protocol.Ended), "the end", 20)
        member.client.give(protocol.AttemptReport(time.monotonic(), "evidence"))
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
    closing.join(PATIENCE_S)
    assert all(member.all_of(protocol.ActOn) for member in cluster.members)


def test_the_stopped_coordinators_host_stays_until_its_core_has_decided(cluster: Cluster) -> None:
    cluster.meet()
    stopped, *others = cluster.members
    stopped.client.give(protocol.GiveUp(time.monotonic(), "stopped by SIGTERM"))
    stopped.close()
    closing = threading.Thread(target=cluster.server.close, args=(30.0,))
    closing.start()
    for member in others:
        wait_for(lambda member=member: member.all_of(protocol.Ended), "the end", 20)
    assert {member.all_of(protocol.Ended)[0].end.node for member in others} == {stopped.name}
    assert closing.is_alive()
    cluster.decide(others)
    closing.join(PATIENCE_S)
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


def test_64_nodes_meet_agree_and_decide() -> None:
    cluster = Cluster(64, ClusterRules(nodes=64))
    try:
        cluster.meet()
        for number in (1, 2, 3):
            for member in cluster.members:
                member.client.give(protocol.NodeText(time.monotonic(), number, "x" * 4000))
            for member in cluster.members:
                wait_for(lambda member=member, number=number: len(member.all_of(protocol.Gathered)) >= number, "the texts", 120)
        cluster.members[63].client.give(protocol.EndAttempt(time.monotonic(), FAILURE, "rank 63"))
        cluster.decide(cluster.members[::-1])
    finally:
        cluster.close()
