"""This node's part in the protocol (node.py), and its connection to the control store, in a thread of its own.

The supervisor's loop gives it what happens here, the ticks too: so a loop that stands still sends no beat. What the node has to do comes
back by `emit`, from this thread. `find_at` names the store's host, after each meeting of the agents. Where it does not answer, this tries
again without end, and nobody waits for it.

What the node must not forget, and where it found the store, is kept (`keep`) before anything that follows from it is done.
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

from supervisor.cluster import messages as protocol
from supervisor.cluster import node as nodes
from supervisor.cluster import wire
from supervisor.cluster.lines import LineSocket

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.cluster.messages import NodeInput, NodeOutput, ToStore
    from supervisor.cluster.model import ClusterRules
    from supervisor.cluster.node import NodeMemory

#: The name of a node's thread.
THREAD = "control-node"
CONNECT_S = 3.0
RETRY_S = 0.5
#: A connection over which nothing came for so many beats leads nowhere, as after a cut link that sent no reset: another may.
DEAF_BEATS = 2.5
#: Answers of which the one with the shortest way gives the offset of the clocks.
_SAMPLES = 30


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where the control store of the job is served, and what lets a node in."""

    host: str
    port: int
    key: str


class NodeClient:
    """One node of the job, from `start` to `close`. clock: of all times in the messages, and of the core's events.

    keep: writes the memory and `address` to the disk; called in this node's thread. address: where an earlier supervisor found the store.
    offset_s: the store's clock less this node's, to half of the shortest way; None where no answer of this store came yet.
    """

    def __init__(  # noqa: PLR0913, PLR0917  what it knows, by what it is judged, whom it serves
        self,
        memory: NodeMemory,
        rules: ClusterRules,
        clock: Callable[[], float],
        keep: Callable[[NodeMemory, StoreAddress | None], None],
        emit: Callable[[NodeOutput], None],
        address: StoreAddress | None = None,
    ) -> None:
        self.name = memory.node
        self.offset_s: float | None = None
        self._clock, self._keep, self._emit, self._rules = clock, keep, emit, rules
        self._state = nodes.new_node(memory, rules, clock())
        self._inbox: deque[NodeInput] = deque()
        self._wanted: StoreAddress | None = None  # where it is to connect
        self._connection: LineSocket | None = None
        self._address = address  # of the connection, or of the last one
        self._written: set[str] = set()  # keys of the rows that were written over this connection
        self._next_try_t = 0.0
        self._is_trying = False
        self._tried: deque[tuple[StoreAddress, socket.socket | None]] = deque()  # what a try has made, None: nothing
        self._answer_t = 0.0
        self._offsets: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)  # how long the way was, the store's clock less ours
        self._is_closing = False
        self._wake, self._woken = socket.socketpair()
        self._woken.settimeout(0.0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    # from any thread

    @property
    def address(self) -> StoreAddress | None:
        """Where the store was found last, None where it was not found yet."""
        return self._address

    def give(self, message: NodeInput) -> None:
        """Take what happened."""
        self._inbox.append(message)
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    def find_at(self, address: StoreAddress) -> None:
        """Connect to the store there, unless it is connected to it already."""
        if address == self._wanted:
            return
        self._wanted = address
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    def close(self, within_s: float) -> None:
        """Send what is under way, and a last beat: who serves the store need not wait for this node any longer."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._wake.send(b".")
        self._thread.join(within_s)

    # the thread

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._take_connection()
                self._connect()
                for key, mask in self._selector.select(RETRY_S if self._connection is None else 1.0):
                    if key.fileobj is self._woken:
                        with contextlib.suppress(BlockingIOError):
                            self._woken.recv(4096)
                    else:
                        self._serve(mask)
                self._take_all()
            self._take_all()
            self._say_goodbye()
        finally:
            if self._connection is not None:
                self._connection.close()
            for _, sock in self._tried:
                if sock is not None:
                    sock.close()
            self._selector.close()
            self._wake.close()
            self._woken.close()

    def _take_all(self) -> None:
        while self._inbox:
            given = self._inbox.popleft()
            if isinstance(given, protocol.NodeTick):
                self._drop_if_deaf()
            self._take(given)

    def _take(self, given: NodeInput) -> None:
        before = self._state.memory
        self._state, outputs = nodes.step(self._state, given)
        if self._state.memory != before:
            self._keep(self._state.memory, self._address)
        for output in outputs:
            if isinstance(output, protocol.SendToStore):
                self._send(output.message)
            else:
                self._emit(output)

    def _send(self, message: ToStore) -> None:
        if self._connection is None:
            return
        if isinstance(message, protocol.WriteRow):
            if message.key in self._written:  # over a connection everything arrives, once
                return
            self._written.add(message.key)
        try:
            self._connection.send(wire.encode(message))
        except OSError:
            self._drop()
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
                for line in connection.lines():
                    self._on_line(line)
        except (OSError, msgspec.DecodeError):
            if self._connection is connection:
                self._drop()

    def _on_line(self, line: bytes) -> None:
        message, now = wire.to_node(line), self._clock()
        self._answer_t = time.monotonic()
        if isinstance(message, protocol.StoreRows) and message.beat_t:
            way_s = now - message.beat_t
            self._offsets.append((way_s, message.store_t - (now + message.beat_t) / 2))
            self.offset_s = min(self._offsets)[1]
        self._take(protocol.FromStore(now, message))

    # the connection

    def _connect(self) -> None:
        """Connect where there is no connection to the store's newest address, every RETRY_S."""
        address, now = self._wanted, time.monotonic()
        if address is None or (self._connection is not None and address == self._address) or now < self._next_try_t:
            return
        if self._connection is not None:
            self._drop()
        if not self._is_trying:
            self._is_trying = True
            try:
                threading.Thread(target=self._try, args=(address,), name="find-store", daemon=True).start()
            except RuntimeError:  # none to be had, where loaders use up the processes for a moment
                self._is_trying, self._next_try_t = False, now + RETRY_S

    def _try(self, address: StoreAddress) -> None:
        """In a thread of its own: a host that is gone, or a name that nobody resolves, takes seconds, in which time goes on here."""
        try:
            sock = socket.create_connection((address.host, address.port), timeout=CONNECT_S)
        except (OSError, ValueError, OverflowError):  # ValueError: a name that is none
            self._tried.append((address, None))
        else:
            if self._is_closing:
                sock.close()
            else:
                self._tried.append((address, sock))
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    def _take_connection(self) -> None:
        """Use the connection that a try has made, if it is still wanted."""
        if not self._tried:
            return
        address, sock = self._tried.popleft()
        self._is_trying = False
        self._next_try_t = time.monotonic() + RETRY_S
        if sock is None or address != self._wanted or self._is_closing:
            if sock is not None:
                sock.close()
            return
        try:
            connection = LineSocket(sock)
            connection.send(wire.greeting(address.key))
        except OSError:
            sock.close()
            return
        is_elsewhere = address != self._address
        self._connection, self._address, self._answer_t = connection, address, time.monotonic()
        if is_elsewhere and self._state.memory.epoch is not None:  # else there is nothing to go on from after a restart
            self._keep(self._state.memory, address)
        self._written.clear()
        self._selector.register(sock, selectors.EVENT_READ)
        self._take(protocol.StoreOpened(self._clock()))

    def _drop_if_deaf(self) -> None:
        if self._connection is not None and time.monotonic() - self._answer_t > DEAF_BEATS * self._rules.beat_s:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._selector.unregister(connection.sock)
        connection.close()
        self._next_try_t = time.monotonic() + RETRY_S
        self._offsets.clear()  # the next store may be on another machine
        self.offset_s = None
        self._take(protocol.StoreClosed(self._clock()))

    def _say_goodbye(self) -> None:
        """Report what is known, so that the store's host can go, and let the socket send it."""
        connection = self._connection
        if connection is None:
            return
        with contextlib.suppress(OSError):
            connection.send(wire.encode(protocol.NodeBeat(self._state.memory.node, self._state.have, self._clock())))
            connection.sock.settimeout(1.0)
            while connection.has_unsent:
                connection.flush()
