"""This node's part in the protocol (member.py), and its connection to the coordinator, in a thread of its own.

The supervisor's loop gives it what happens here, the ticks too: so a loop that makes no progress sends no beat. What the node has to do
comes back by `emit`, from this thread. `find_at` names the coordinator's host, after each meeting of the agents. Where it does not answer,
this tries again without end, and nobody waits for it.

The node's lasting memory, and the coordinator's place, are kept (`keep`) before any action that follows from them.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from supervisor.cluster import member as members
from supervisor.cluster import messages as protocol
from supervisor.cluster import wire
from supervisor.cluster.lines import Inbox, LineSocket, unanswered_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.cluster.member import MemberInput, MemberOutput
    from supervisor.cluster.model import ClusterRules, NodeMemory

#: The name of a node's thread.
THREAD = "cluster-member"
CONNECT_S = 3.0
RETRY_S = 0.5
#: The time that a node gives its last messages to be read.
_GOODBYE_S = 1.0
#: Answers of which the one with the shortest way gives the offset of the clocks.
_SAMPLES = 30


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """Where the coordinator of the job is served, and what lets a node in."""

    host: str
    port: int
    key: str


class NodeClient:
    """One node of the job, from `start` to `close`. clock: of all times in the messages, and of the core's events.

    keep: writes the memory and `address` to the disk; called in this node's thread. address: where an earlier supervisor found the
    coordinator. offset_s: its clock less this node's, to half of the shortest way; None where no answer of it came yet.
    """

    def __init__(  # noqa: PLR0913, PLR0917  its facts, its judges, its users
        self,
        memory: NodeMemory,
        rules: ClusterRules,
        clock: Callable[[], float],
        keep: Callable[[NodeMemory, CoordinatorAddress | None], None],
        emit: Callable[[MemberOutput | protocol.Refusal], None],
        address: CoordinatorAddress | None = None,
    ) -> None:
        self.name = memory.node
        self.offset_s: float | None = None
        self._clock, self._keep, self._emit = clock, keep, emit
        self._state: members.MemberState = members.new_member(memory, rules, clock())
        self._target: CoordinatorAddress | None = None  # where it is to connect
        self._refusing: CoordinatorAddress | None = None  # where it is not let in
        self._connection: LineSocket | None = None
        self._address = address  # of the connection, or of the last one
        self._next_try_t = 0.0
        self._is_trying = False
        self._tries: deque[tuple[CoordinatorAddress, socket.socket | None]] = deque()  # what a try has made, None: nothing
        self._offsets: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)  # how long the way was, the coordinator's clock less this node's
        self._is_closing = False
        self._selector = selectors.DefaultSelector()
        self._inbox: Inbox[MemberInput] = Inbox(self._selector)
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    # from any thread

    @property
    def address(self) -> CoordinatorAddress | None:
        """Where the coordinator was found last, None where it was not found yet."""
        return self._address

    def give(self, message: MemberInput) -> None:
        """Take what happened."""
        self._inbox.give(message)

    def find_at(self, address: CoordinatorAddress) -> None:
        """Connect to the coordinator there, unless it is connected to it already."""
        if address != self._target:
            self._target = address
            self._inbox.wake()

    def close(self, within_s: float) -> None:
        """Send the messages under way, and end."""
        self._is_closing = True
        self._inbox.wake()
        self._thread.join(within_s)

    # the thread

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._take_connection()
                self._connect()
                for key, mask in self._selector.select(RETRY_S if self._connection is None else 1.0):
                    if key.data is not self._inbox:
                        self._serve(mask)
                if self._connection is not None and self._connection.is_unreachable:
                    self._drop(unanswered_s(None))
                self._take_all()
            self._take_all()
            self._say_goodbye()
        finally:
            if self._connection is not None:
                self._connection.close()
            for _, sock in self._tries:
                if sock is not None:
                    sock.close()
            self._selector.close()
            self._inbox.close()

    def _take_all(self) -> None:
        for message in self._inbox.items():
            self._take(message)

    def _take(self, message: MemberInput) -> None:
        memory = self._state.memory
        self._state, outputs = members.step(self._state, message)
        if self._state.memory != memory:
            self._keep(self._state.memory, self._address)
        for output in outputs:
            if isinstance(output, protocol.SendToCoordinator):
                self._send(output.message)
            else:
                self._emit(output)

    def _send(self, message: protocol.ToCoordinator) -> None:
        if self._connection is None:
            return
        try:
            self._connection.put(wire.encode(message), overtakes=isinstance(message, protocol.Beat))
            self._connection.flush()
        except OSError as error:
            self._drop(unanswered_s(error))
        else:
            self._await()

    def _await(self) -> None:
        if self._connection is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._connection.has_unsent else 0)
            self._selector.modify(self._connection.sock, events)

    def _serve(self, mask: int) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                connection.flush()
                self._await()
            if mask & selectors.EVENT_READ:
                for message in connection.messages():
                    if self._connection is not connection:
                        return  # it was dropped meanwhile
                    self._on_message(message)
        except (OSError, msgspec.DecodeError) as error:
            if self._connection is connection:
                self._drop(unanswered_s(error) if isinstance(error, OSError) else 0.0)

    def _on_message(self, data: bytes) -> None:
        message, now = wire.to_node(data), self._clock()
        if isinstance(message, protocol.Refusal):
            self._refusing = self._address
            self._emit(message)
            self._drop()
            return
        if isinstance(message, protocol.BeatAnswer):
            self._offsets.append((now - message.sent_t, message.coordinator_t - (now + message.sent_t) / 2))
            self.offset_s = min(self._offsets)[1]
        self._take(protocol.FromCoordinator(now, message))

    # the connection

    def _connect(self) -> None:
        """Connect where there is no connection to the coordinator's newest address, every RETRY_S."""
        address, now = self._target, time.monotonic()
        if address is None or address == self._refusing or (self._connection is not None and address == self._address):
            return
        if now < self._next_try_t:
            return
        if self._connection is not None:
            self._drop()
        if not self._is_trying:
            self._is_trying = True
            try:
                threading.Thread(target=self._try, args=(address,), name="find-coordinator", daemon=True).start()
            except RuntimeError:  # no thread can be started: loaders may use up the limit on processes for a moment
                self._is_trying, self._next_try_t = False, now + RETRY_S

    def _try(self, address: CoordinatorAddress) -> None:
        """In a thread of its own: a host that is gone, or a name that nobody resolves, takes seconds, and time passes here."""
        try:
            sock = socket.create_connection((address.host, address.port), timeout=CONNECT_S)
        except (OSError, ValueError, OverflowError):  # ValueError: no valid name
            self._tries.append((address, None))
        else:
            if self._is_closing:
                sock.close()
            else:
                self._tries.append((address, sock))
        self._inbox.wake()

    def _take_connection(self) -> None:
        """Use the connection that a try has made, if it is still wanted."""
        if not self._tries:
            return
        address, sock = self._tries.popleft()
        self._is_trying = False
        self._next_try_t = time.monotonic() + RETRY_S
        if sock is None or address != self._target or self._is_closing:
            if sock is not None:
                sock.close()
            return
        try:
            connection = LineSocket(sock, wire.LONGEST_OF_THE_COORDINATOR)
            connection.put(wire.greeting(address.key))
        except OSError:
            sock.close()
            return
        is_elsewhere = address != self._address
        self._connection, self._address = connection, address
        if is_elsewhere and self._state.memory.attempt is not None:  # else there is nothing to continue from after a restart
            self._keep(self._state.memory, address)
        self._selector.register(sock, selectors.EVENT_READ)
        self._take(protocol.LinkOpened(self._clock()))

    def _drop(self, unreachable_s: float = 0.0) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._selector.unregister(connection.sock)
        connection.close()
        self._next_try_t = time.monotonic() + RETRY_S
        self._offsets.clear()  # the next coordinator may be on another machine
        self.offset_s = None
        self._take(protocol.LinkClosed(self._clock(), unreachable_s))

    def _say_goodbye(self) -> None:
        """Send the remaining messages, and await the coordinator's end of the connection: it has read all then."""
        connection = self._connection
        if connection is None:
            return
        connection.sock.settimeout(_GOODBYE_S)
        with contextlib.suppress(OSError):
            connection.flush()
            connection.say_no_more()
            while True:
                connection.discard()
