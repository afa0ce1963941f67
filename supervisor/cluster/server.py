"""Serves the coordinator (coordinator.py) over TCP, in a thread of its own: no peer and no disk holds up the supervisor's loop.

A connection that sends anything but a greeting and messages is closed, and nobody else notices; one of another version or another job is
informed of the reason first. A node that opens a second connection lost the first. A reader (reader.py) and a guardian have the key but
are not nodes.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from supervisor.cluster import coordinator as coordination
from supervisor.cluster import messages as protocol
from supervisor.cluster import wire
from supervisor.cluster.lines import ClosedByPeer, Inbox, LineListener, LineSocket, MessageTooLong, unanswered_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.cluster.coordinator import CoordinatorInput, CoordinatorOutput
    from supervisor.cluster.model import CoordinatorMemory
    from supervisor.cluster.records import CoordinatorState

TICK_S = 0.2
#: Name of the thread.
THREAD = "coordinator"
#: A connection without a message of a node within this time is closed.
GREETING_S = 10.0
#: Connections that have not greeted yet; a port scanner opens many.
MOST_STRANGERS = 256
_BACKLOG = 1024


class _Connection:
    """One connection.

    node: "" until its Join. is_refused: its peer knows, and its messages are not read. is_last: nothing is sent over it any more.
    """

    def __init__(self, lines: LineSocket, t: float) -> None:
        self.lines = lines
        self.since_t = t
        self.node = ""
        self.is_greeted = self.is_refused = self.is_last = False


def listen(port: int = 0) -> socket.socket:
    """Return a socket that listens on all addresses, IPv6 too where the host has it. Raises OSError where the port is taken."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=_BACKLOG)


class CoordinatorServer:
    """A coordinator that is served from `start` until `close`.

    clock: of all its times, and of the core's. keep: writes to the disk what the next coordinator begins with (kept.py). emit: takes what
    this node's core has to do. warn: prints a line at the terminal. All three are called in the coordinator's thread.
    """

    def __init__(  # noqa: PLR0913, PLR0917  whom it serves, by what, and who hears of it
        self,
        listener: socket.socket,
        key: str,
        state: CoordinatorState,
        clock: Callable[[], float],
        keep: Callable[[CoordinatorMemory], None],
        emit: Callable[[CoordinatorOutput], None],
        warn: Callable[[str], None],
    ) -> None:
        self.port: int = listener.getsockname()[1]
        self.key = key
        self._state = state
        self._clock, self._keep, self._emit, self._warn = clock, keep, emit, warn
        self._connections: dict[int, _Connection] = {}
        self._of_node: dict[str, _Connection] = {}
        self._unsent: set[_Connection] = set()  # for which there is something to be sent
        self._informed_nodes: set[str] = set()  # nodes that have read all that was sent to them, the decision too
        self._warnings: set[str] = set()
        self._is_stepping = False
        self._selector = selectors.DefaultSelector()
        self._inbox: Inbox[CoordinatorInput] = Inbox(self._selector)
        self._listener = LineListener(listener, self._selector, wire.LONGEST_OF_A_STRANGER)
        self._end_t: float | None = None  # by when it closes at the latest
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    # from any thread

    def start(self) -> None:
        """Begin to serve. Raises RuntimeError if no thread can be started; its port is free then."""
        try:
            self._thread.start()
        except RuntimeError:
            self._close_all()
            raise

    @property
    def serves(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    @property
    def memory(self) -> CoordinatorMemory:
        """Return the state with which the next coordinator begins."""
        return self._state.memory

    def give(self, message: CoordinatorInput) -> None:
        """Take the core's decision."""
        self._inbox.give(message)

    def standings(self) -> dict[str, str]:
        """Return the standing of each connected node, as its last beat has it."""
        nodes = coordination.known_nodes(self._state, self._clock()).nodes
        return {node.node: node.standing for node in nodes if node.reached and node.standing}

    def close(self, linger_s: float) -> None:
        """Serve until every member of the last attempt knows its decision, `linger_s` at most, and return then. Not from the loop's thread.

        Also where the job continues without this node: its leaving ended the attempt, and nothing is decided without a coordinator.
        """
        self._end_t = time.monotonic() + linger_s
        self._inbox.wake()
        if self._thread.ident is not None:  # it began
            self._thread.join()

    # the thread

    def _run(self) -> None:
        try:
            next_tick = time.monotonic()
            while not self._is_closing():
                now = time.monotonic()
                if now >= next_tick:
                    self._take(protocol.CoordinatorTick(self._clock()))
                    self._drop_strangers(now)
                    self._drop_unreachable()
                    self._listener.tick()
                    next_tick = now + TICK_S
                for key, mask in self._selector.select(max(0.0, next_tick - time.monotonic())):
                    if key.data is self._listener:
                        self._accept()
                    elif key.data is self._inbox:
                        for message in self._inbox.items():
                            self._take(message)
                    else:
                        self._serve(self._connections.get(key.fd), mask)
                self._send_all()
        finally:
            self._close_all()

    def _close_all(self) -> None:
        for connection in self._connections.values():
            connection.lines.close()
        self._listener.close()
        self._inbox.close()
        self._selector.close()

    def _is_closing(self) -> bool:
        """Return whether nobody is served any more; let the members go that have read the decision."""
        if self._end_t is None:
            return False
        memory = self._state.memory
        if memory.attempt is None or time.monotonic() >= self._end_t:
            return True
        if memory.decision is None:
            return False
        job = coordination.known_nodes(self._state, self._clock())
        awaited = {node.node for node in job.nodes if node.index >= 0 and not node.absence.startswith(("lost", "left"))} - {job.host}
        for node in awaited - self._informed_nodes:
            connection = self._of_node.get(node)
            if connection is not None and not connection.lines.has_unsent and not connection.is_last:
                connection.is_last = True
                with contextlib.suppress(OSError):  # its end is read
                    connection.lines.say_no_more()
        return awaited <= self._informed_nodes

    def _accept(self) -> None:
        lines = self._listener.accept()
        if lines is None:
            return
        strangers = [connection for connection in self._connections.values() if not connection.is_greeted]
        if len(strangers) >= MOST_STRANGERS:
            self._drop(strangers[0])
        self._connections[lines.fileno()] = _Connection(lines, time.monotonic())
        self._selector.register(lines.sock, selectors.EVENT_READ)

    def _serve(self, connection: _Connection | None, mask: int) -> None:
        if connection is None:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                connection.lines.flush()
                self._await(connection)
            if mask & selectors.EVENT_READ:
                self._read(connection)
        except ClosedByPeer:
            if self._state.memory.decision is not None and not connection.lines.has_unsent:
                self._informed_nodes.add(connection.node)
            self._drop(connection)
        except OSError as error:
            self._drop(connection, unanswered_s(error))
        except msgspec.DecodeError:
            self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        if connection.is_refused:
            connection.lines.discard()
            return
        try:
            for message in connection.lines.messages():
                if self._connections.get(connection.lines.fileno()) is not connection or connection.is_refused:
                    return  # dropped meanwhile: another connection means its node
                self._on_message(connection, message)
        except MessageTooLong as error:
            self._refuse(connection, f"the node at {connection.lines.peer} sent {error}: report this, and start supervise again there")

    def _on_message(self, connection: _Connection, data: bytes) -> None:
        if not connection.is_greeted:
            reason = wire.refusal(data, self.key, connection.lines.peer)
            if reason:
                self._refuse(connection, reason)
            else:
                connection.is_greeted, connection.lines.longest = True, wire.LONGEST_OF_A_NODE
            return
        message = wire.to_coordinator(data)
        if isinstance(message, protocol.AskNodes):
            self._send(connection, wire.encode(coordination.known_nodes(self._state, self._clock())))
        elif isinstance(message, protocol.Gone):
            self._on_gone(message)
        else:
            if isinstance(message, protocol.Join):
                self._introduce(connection, message.node)
            if not connection.node:
                raise ConnectionAbortedError("a node that has not joined")
            self._take(protocol.FromNode(self._clock(), connection.node, message))

    def _on_gone(self, message: protocol.Gone) -> None:
        """Take the word of a guardian, unless another supervisor of its node is connected: that speaks for itself."""
        connection = self._of_node.get(message.node)
        if connection is not None:
            self._serve(connection, selectors.EVENT_READ)  # the end of the one that died may not be read yet
        if message.node not in self._of_node:
            self._take(protocol.FromNode(self._clock(), message.node, message))

    def _introduce(self, connection: _Connection, node: str) -> None:
        """Give a node this connection in place of an earlier one."""
        if connection.node:
            raise ConnectionAbortedError("a node joins once over a connection")
        connection.node = node
        earlier = self._of_node.get(node)
        self._of_node[node] = connection
        if earlier is not None:
            self._drop(earlier)

    def _refuse(self, connection: _Connection, reason: str) -> None:
        """Tell both sides why a connection is refused, each once. Its peer closes it, or the time for strangers runs out."""
        connection.is_refused, connection.since_t = True, time.monotonic()
        self._forget(connection)
        if reason not in self._warnings and len(self._warnings) < MOST_STRANGERS:
            self._warnings.add(reason)
            self._warn(f"refused: {reason}")
        self._send(connection, wire.encode(protocol.Refusal(reason)))

    def _take(self, message: CoordinatorInput) -> None:
        """Have the coordinator answer. Events of a connection that breaks while the answers are sent come after them."""
        if self._is_stepping:
            self._inbox.give(message)
            return
        self._is_stepping = True
        try:
            memory = self._state.memory
            self._state, outputs = coordination.step(self._state, message)
            if self._state.memory != memory:
                self._informed_nodes.clear()
                self._keep(self._state.memory)
            for output in outputs:
                self._do(output)
        finally:
            self._is_stepping = False

    def _do(self, output: CoordinatorOutput) -> None:
        if not isinstance(output, protocol.SendToNodes):
            self._emit(output)
            return
        lines = wire.encode(output.message)  # once, for all of them
        for node in output.nodes:
            connection = self._of_node.get(node)
            if connection is not None and not connection.is_last:
                self._send(connection, lines)

    def _send(self, connection: _Connection, lines: tuple[bytes, ...]) -> None:
        connection.lines.put(lines)
        self._unsent.add(connection)

    def _send_all(self) -> None:
        """Send what there is for each connection, in one go."""
        while self._unsent:
            connection = self._unsent.pop()
            if self._connections.get(connection.lines.fileno()) is connection:
                try:
                    connection.lines.flush()
                except OSError as error:
                    self._drop(connection, unanswered_s(error))
                else:
                    self._await(connection)

    def _await(self, connection: _Connection) -> None:
        """Wait for what comes next on a connection."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.lines.has_unsent else 0)
        with contextlib.suppress(KeyError, ValueError):  # it was dropped meanwhile
            if self._selector.get_key(connection.lines.sock).events != events:
                self._selector.modify(connection.lines.sock, events)

    def _drop_strangers(self, now: float) -> None:
        for connection in list(self._connections.values()):
            if not connection.node and now - connection.since_t > GREETING_S:
                self._drop(connection)

    def _drop_unreachable(self) -> None:
        for connection in list(self._connections.values()):
            if connection.lines.is_unreachable:
                self._drop(connection, unanswered_s(None))

    def _drop(self, connection: _Connection, unreachable_s: float = 0.0) -> None:
        """Close a connection; the coordinator learns of it where it was its node's newest, and how long its host did not answer before."""
        fd = connection.lines.fileno()
        if self._connections.get(fd) is not connection:
            return
        del self._connections[fd]
        self._selector.unregister(connection.lines.sock)
        connection.lines.close()
        self._forget(connection, unreachable_s)

    def _forget(self, connection: _Connection, unreachable_s: float = 0.0) -> None:
        node, connection.node = connection.node, ""
        if node and self._of_node.get(node) is connection:
            del self._of_node[node]
            self._take(protocol.NodeClosed(self._clock(), node, unreachable_s))
