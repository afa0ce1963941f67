"""Serves the control store (store.py) over TCP, in a thread of its own: nothing that a peer or a disk does holds up the supervisor's loop.

A connection that sends anything but the job's key and messages is closed, and nobody else notices. A node that opens a second connection
has lost the first. A reader (reader.py) has the key and is no node: the store itself knows nothing of it.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

import msgspec

from supervisor.cluster import store as storage
from supervisor.cluster import wire
from supervisor.cluster.lines import LineListener, LineSocket
from supervisor.cluster.messages import AskNodes, NodeBeat
from supervisor.cluster.model import nodes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.cluster.messages import ToNode, ToStore
    from supervisor.cluster.store import StoreInput, StoreOutput, StoreState

TICK_S = 0.2
#: Name of the thread.
THREAD = "control-store"
#: A connection without a greeting within this time is not a node.
GREETING_S = 10.0
#: Connections that have not greeted yet; a port scanner opens many.
MOST_STRANGERS = 256
_BACKLOG = 1024


class _NodeConnection:
    """One connection. node: "" until its hello."""

    def __init__(self, lines: LineSocket, t: float) -> None:
        self.lines = lines
        self.since_t = t
        self.is_greeted = False
        self.node = ""


def listen(port: int = 0) -> socket.socket:
    """Return a socket that listens on all addresses, IPv6 too where the host has it. Raises OSError where the port is taken."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=_BACKLOG)


class StoreServer:
    """A store that is served from `start` until `close`.

    keep: writes to the disk the rows with which the next store begins (kept.py). Called in the store's thread.
    """

    def __init__(self, listener: socket.socket, key: str, state: StoreState, keep: Callable[[tuple[tuple[str, str], ...]], None]) -> None:
        self.port: int = listener.getsockname()[1]
        self.key = key
        self._state = state
        self._keep = keep
        self._connections: dict[int, _NodeConnection] = {}
        self._of_node: dict[str, _NodeConnection] = {}
        self._inbox: deque[StoreInput] = deque()  # the first is being answered
        self._have: dict[str, int] = {}  # the revision that each node reported to have
        self._encoded: tuple[ToNode | None, bytes] = None, b""
        self._selector = selectors.DefaultSelector()
        self._listener = LineListener(listener, self._selector)
        self._end_t: float | None = None  # by when it closes at the latest
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    def start(self) -> None:
        """Begin to serve. Raises RuntimeError where no thread is to be had; its port is free then."""
        try:
            self._thread.start()
        except RuntimeError:
            self._listener.close()
            self._selector.close()
            raise

    @property
    def serves(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def standings(self) -> dict[str, str]:
        """Return what each node's newest beat says of it, by the name of the node. From any thread."""
        return {known.node: known.standing for known in storage.known_nodes(self._state, time.monotonic()).nodes if known.standing}

    def close(self, linger_s: float) -> None:
        """Serve until every member of the last epoch knows its decision, `linger_s` at most, and return then. Not from the loop's thread.

        Also where the job goes on without this node: its leaving ended the epoch, and nothing is decided without a store.
        """
        self._end_t = time.monotonic() + linger_s
        if self._thread.ident is not None:  # it began
            self._thread.join()

    # the thread

    def _run(self) -> None:
        try:
            next_tick = time.monotonic()
            while not self._is_closing():
                now = time.monotonic()
                if now >= next_tick:
                    self._take(storage.StoreTick(now))
                    self._drop_strangers(now)
                    self._listener.tick()
                    next_tick = now + TICK_S
                for key, mask in self._selector.select(max(0.0, next_tick - time.monotonic())):
                    if key.data is self._listener:
                        self._accept()
                    else:
                        self._serve(self._connections.get(key.fd), mask)
        finally:
            for connection in list(self._connections.values()):
                connection.lines.close()
            self._listener.close()
            self._selector.close()

    def _is_closing(self) -> bool:
        if self._end_t is None:
            return False
        state = self._state
        if state.epoch is None or time.monotonic() >= self._end_t:
            return True
        if state.is_open:
            return False
        number = state.epoch.number
        out = nodes_of(state.rows, "lost", number) | nodes_of(state.rows, "left", number) | {state.host}
        return all(node in out or self._have.get(node, 0) >= state.revision for node in state.epoch.members)

    def _accept(self) -> None:
        lines = self._listener.accept()
        if lines is None:
            return
        strangers = [connection for connection in self._connections.values() if not connection.is_greeted]
        if len(strangers) >= MOST_STRANGERS:
            self._drop(strangers[0])
        self._connections[lines.fileno()] = _NodeConnection(lines, time.monotonic())
        self._selector.register(lines.sock, selectors.EVENT_READ)

    def _serve(self, connection: _NodeConnection | None, mask: int) -> None:
        if connection is None:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                connection.lines.flush()
                self._await(connection)
            if mask & selectors.EVENT_READ:
                for line in connection.lines.lines():
                    self._on_line(connection, line)
        except (OSError, msgspec.DecodeError):
            self._drop(connection)

    def _on_line(self, connection: _NodeConnection, line: bytes) -> None:
        if not connection.is_greeted:
            if not wire.is_greeting(line, self.key):
                raise ConnectionAbortedError("no node of this job")
            connection.is_greeted = True
            return
        message = wire.to_store(line)
        if isinstance(message, AskNodes):
            self._send(connection, wire.encode(storage.known_nodes(self._state, time.monotonic())))
            return
        if connection.node != message.node:
            self._introduce(connection, message)
        if isinstance(message, NodeBeat):
            self._have[message.node] = message.have
            # what was sent over this connection arrives: it is not sent again
            message = replace(message, have=max(message.have, self._state.connected.get(message.node, 0)))
        self._take(storage.FromNode(time.monotonic(), message))

    def _introduce(self, connection: _NodeConnection, message: ToStore) -> None:
        """Give a node this connection in place of an earlier one."""
        if connection.node:
            raise ConnectionAbortedError("a node does not change its name")
        connection.node = message.node
        before = self._of_node.get(message.node)
        self._of_node[message.node] = connection
        if before is not None:
            self._drop(before)

    def _take(self, given: StoreInput) -> None:
        """Have the store answer. What a broken connection brings while the answers are sent comes after them."""
        self._inbox.append(given)
        if len(self._inbox) > 1:
            return
        while self._inbox:
            self._state, outputs = storage.step(self._state, self._inbox[0])
            for output in outputs:
                self._do(output)
            self._inbox.popleft()

    def _do(self, output: StoreOutput) -> None:
        match output:
            case storage.KeepRows(rows):
                self._keep(rows)
            case storage.SendToNode(node, message):
                connection = self._of_node.get(node)
                if connection is not None:
                    if message != self._encoded[0]:  # many nodes get the same
                        self._encoded = message, wire.encode(message)
                    self._send(connection, self._encoded[1])
            case _:
                assert_never(output)

    def _send(self, connection: _NodeConnection, data: bytes) -> None:
        try:
            connection.lines.send(data)
        except OSError:
            self._drop(connection)
        else:
            self._await(connection)

    def _await(self, connection: _NodeConnection) -> None:
        """Wait for what comes next on a connection."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.lines.has_unsent else 0)
        with contextlib.suppress(KeyError, ValueError):  # it was dropped meanwhile
            if self._selector.get_key(connection.lines.sock).events != events:
                self._selector.modify(connection.lines.sock, events)

    def _drop_strangers(self, now: float) -> None:
        for connection in list(self._connections.values()):
            if not connection.node and now - connection.since_t > GREETING_S:
                self._drop(connection)

    def _drop(self, connection: _NodeConnection) -> None:
        """Close a connection; the store learns of it where it was its node's newest."""
        fd = connection.lines.fileno()
        if self._connections.get(fd) is not connection:
            return
        del self._connections[fd]
        self._selector.unregister(connection.lines.sock)
        connection.lines.close()
        if connection.node and self._of_node.get(connection.node) is connection:
            del self._of_node[connection.node]
            self._take(storage.NodeClosed(time.monotonic(), connection.node))
