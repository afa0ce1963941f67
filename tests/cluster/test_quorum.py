"""The register by majority over real sockets and real files, and what a host without its disk may do."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.cluster.lines import PAUSE_S
from supervisor.cluster.quorum import acceptor
from supervisor.cluster.quorum.acceptor import AcceptCell, Ballot, PrepareBallot, RegisterCell, answered
from supervisor.cluster.quorum.client import QuorumRegister
from supervisor.cluster.quorum.proposer import counted
from supervisor.cluster.quorum.server import AcceptorServer
from supervisor.cluster.quorum.wire import RegisterHosts
from supervisor.cluster.register import RegisterChanged, Registered, RegisterUnreachable
from tests.support.descriptors import no_descriptor_left
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from supervisor.cluster.quorum.acceptor import AcceptorAnswer, AcceptorState


class Hosts:
    """Three hosts of a list, each with a directory."""

    def __init__(self, place: Path) -> None:
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        self.hosts = RegisterHosts("job", tuple(("127.0.0.1", one.getsockname()[1]) for one in listeners))
        self.paths = [place / str(index) / "acceptor.json" for index in range(3)]
        self.reports: list[str] = []
        self.servers: dict[int, AcceptorServer] = {}
        self.register = QuorumRegister(self.hosts)
        for index, listener in enumerate(listeners):
            self.start(index, listener)

    def start(self, index: int, listener: socket.socket | None = None) -> None:
        """Start one."""
        listener = listener or socket.create_server(self.hosts.hosts[index])
        self.servers[index] = AcceptorServer(listener, self.hosts, index, self.paths[index], self.reports.append)
        self.servers[index].start()

    def stop(self, index: int) -> None:
        """Stop one."""
        self.servers.pop(index).close()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    wait_for(lambda: all(server.votes for server in hosts.servers.values()), "the votes of all hosts")
    yield hosts
    hosts.register.close()
    for index in tuple(hosts.servers):
        hosts.stop(index)


def test_a_value_outlives_a_minority_and_each_restart(three: Hosts) -> None:
    register, other = three.register, QuorumRegister(three.hosts)
    assert register.read() == Registered(0, "")
    assert register.write("first", 0) == 1
    three.stop(0)
    assert other.read() == Registered(1, "first")
    assert other.write("second", 1) == 2
    with pytest.raises(RegisterChanged):
        register.write("mine", 1)
    three.stop(1)
    with pytest.raises(RegisterUnreachable, match=rf"no majority of 3 hosts .*127\.0\.0\.1:{three.hosts.hosts[0][1]}: .*refused"):
        register.write("third", 2)
    three.start(1)  # with its disk
    assert register.read().value in {"second", "third"}  # what was written without an answer may be there later
    three.start(0)
    three.paths[2].unlink()
    three.stop(2)
    three.start(2)
    wait_for(lambda: three.servers[2].votes, "the vote of the new disk")
    assert json.loads(three.paths[2].read_text())["state"]["incarnations"][2][0] == 2
    three.stop(0)
    assert other.read().value in {"second", "third"}
    other.close()


def test_another_job_is_refused(three: Hosts) -> None:
    stranger = QuorumRegister(RegisterHosts("another job", three.hosts.hosts))
    with pytest.raises(RegisterUnreachable, match="serves the register of another job"):
        stranger.read()
    with socket.create_connection(three.hosts.hosts[0]) as scanner:
        scanner.sendall(b"GET / HTTP/1.1\r\n")
        assert scanner.recv(100) == b"another register\n"
    for junk in (b"[]\n", b'["join", {"index": 7, "incarnation": [1, "x"]}]\n', b"[" * 100_000 + b"\n"):
        with socket.create_connection(three.hosts.hosts[0]) as member:
            member.sendall(three.hosts.greeting() + junk)
            assert not member.recv(100)
    assert three.register.read() == Registered(0, "")
    stranger.close()


def test_an_acceptor_without_a_descriptor_for_another_connection_does_not_spin(three: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    accept, tries = three.servers[0]._accept, list[float]()  # noqa: SLF001
    monkeypatch.setattr(three.servers[0], "_accept", lambda: (tries.append(time.monotonic()), accept()))
    with socket.socket() as late:
        late.settimeout(20.0)
        with no_descriptor_left():
            late.connect(three.hosts.hosts[0])
            wait_for(lambda: tries and time.monotonic() - tries[0] > 2.2 * PAUSE_S, "two pauses")
            assert len(tries) <= 4
        late.sendall(b"GET / HTTP/1.1\r\n")
        assert late.recv(100) == b"another register\n"


def test_a_disk_that_cannot_be_read_is_not_taken_for_a_new_one(three: Hosts) -> None:
    three.stop(0)
    three.paths[0].write_text("{")
    three.start(0)
    wait_for(lambda: bool(three.reports), "a report")
    assert "does not vote" in three.reports[0]
    assert three.register.write("of two", 0) == 1
    three.stop(1)
    with pytest.raises(RegisterUnreachable):
        three.register.read()


# a disk is lost while votes are on their way: each of these histories would give the register two values


def voters() -> list[AcceptorState]:
    """Return three acceptors that vote, and accepted one value in ballot 5."""
    states = [acceptor.new_acceptor(index, 3, f"first disk of {index}") for index in range(3)]
    states = [joined_of(states, index) for index in range(3)]
    return [answered(state, AcceptCell(Ballot(5, "p"), RegisterCell(1, "old", "w")))[0] for state in states]


def joined_of(states: list[AcceptorState], index: int) -> AcceptorState:
    """Let one join, by what the others have."""
    while not states[index].votes:
        answers: dict[int, AcceptorAnswer] = {}
        for other in range(3):
            if other != index:
                states[other], answers[other] = answered(states[other], acceptor.join_request(states[index]))
        states[index] = acceptor.joined(states[index], answers)
    return states[index]


def test_a_vote_of_a_lost_disk_does_not_count_beside_one_that_knows_the_new_disk() -> None:
    states = voters()
    ballot, cell = Ballot(7, "p"), RegisterCell(2, "new", "w2")
    for index in (0, 2):
        states[index], _ = answered(states[index], PrepareBallot(ballot))
    states[0], lost = answered(states[0], AcceptCell(ballot, cell))
    states[0] = acceptor.new_acceptor(0, 3, "second disk")
    joined_of(states, 0)
    assert (states[0].cell.value, states[2].cell.value) == ("old", "old")  # a majority, which knows nothing of the new value
    states[1], later = answered(states[1], AcceptCell(ballot, cell))
    assert later.granted
    assert list(counted({0: lost, 1: later})) == [1]


def test_a_new_disk_keeps_the_promises_of_the_lost_one() -> None:
    states = voters()
    for index in (0, 2):
        states[index], _ = answered(states[index], PrepareBallot(Ballot(7, "p")))
    states[0] = acceptor.new_acceptor(0, 3, "second disk")
    joined_of(states, 0)
    assert not answered(states[0], AcceptCell(Ballot(6, "q"), RegisterCell(2, "of a lower ballot", "w")))[1].granted
    assert states[0].cell.value == "old"
