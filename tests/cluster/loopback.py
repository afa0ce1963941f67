"""A coordinator and its nodes over loopback, each node on a way of its own that a test cuts."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from supervisor.cluster import messages as protocol
from supervisor.cluster import wire
from supervisor.cluster.client import CoordinatorAddress, NodeClient
from supervisor.cluster.coordinator import new_coordinator
from supervisor.cluster.model import RESTART, ClusterDecision, ClusterRules, CoordinatorMemory, NodeMemory
from supervisor.cluster.server import CoordinatorServer, listen
from tests.support.waiting import wait_for

if TYPE_CHECKING:
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
            is_reset = True
        else:
            is_reset = False
        while self.is_cut:  # the end of a connection does not come through either
            time.sleep(0.02)
        # who says no more may still listen: as the system carries it, each direction ends by itself
        for end, how in ((source, socket.SHUT_RDWR), (target, socket.SHUT_RDWR)) if is_reset else ((target, socket.SHUT_WR),):
            with contextlib.suppress(OSError):
                end.shutdown(how)

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
        """Let all meet, and await the attempt."""
        token = f"meeting {number}"
        for member in self.members:
            member.meets(token, len(self.members), number)
        for member in self.members:
            wait_for(lambda member=member: any(began.attempt.token == token for began in member.all_of(protocol.Began)), "the attempt", 120)

    def judged(self) -> list[protocol.JudgeReports]:
        """Return what the core was asked to judge."""
        return [output for output in self.asked if isinstance(output, protocol.JudgeReports)]

    def decide(self, members: list[Member], number: int = 1, kind: str = RESTART) -> None:
        """Let these report, the core decide, and all of them act on it."""
        for member in members:
            wait_for(lambda member=member: member.all_of(protocol.Ended), "the end", 20)
            member.client.give(protocol.AttemptReport(time.monotonic(), f"evidence of {member.name}"))
        wait_for(lambda: any(asked.number == number for asked in self.judged()), "the reports", 20)
        self.server.give(protocol.DecisionProposed(time.monotonic(), number, ClusterDecision(kind, "by the core")))
        for member in members:
            wait_for(
                lambda member=member: any(acted.attempt.number == number for acted in member.all_of(protocol.ActOn)), "the decision", 20
            )

    def is_well(self) -> None:
        """Show that what one node says reaches the others, and that no attempt has ended."""
        text = f"began {time.monotonic()}"
        self.members[1].says(text)
        wait_for(lambda: self.members[0].all_of(protocol.Peer), "its text", 10)
        assert not any(member.all_of(protocol.Ended) for member in self.members)

    def close(self) -> None:
        """End all."""
        for member in self.members:
            member.close()
        self.server.close(0.0)
        for relay in self.relays:
            relay.close()


def greeted(port: int, sent: bytes = b"") -> socket.socket:
    """Return a connection that has greeted, and sent this."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.settimeout(20.0)
    sock.sendall(b"".join(wire.greeting(KEY)) + sent)
    return sock


def reached(cluster: Cluster, node: str) -> bool:
    """Whether the connection of a node is open, as the coordinator has it."""
    with greeted(cluster.server.port, b"".join(wire.encode(protocol.AskNodes()))) as sock, sock.makefile("rb") as file:
        known = wire.to_reader(file.readline()[1:-1])
    assert isinstance(known, protocol.KnownNodes)
    return any(row.node == node and row.reached for row in known.nodes)
