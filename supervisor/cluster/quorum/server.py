"""Serves the acceptor of this host (acceptor.py) over TCP, in threads of its own, and lets it join.

What it answers is on disk before: a disk that hangs holds up its answers, and nothing else. The others go on without it.
"""

from __future__ import annotations

import json
import secrets
import selectors
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import msgspec

from checkpointing.io import staging
from supervisor.cluster.lines import LineListener, LineSocket
from supervisor.cluster.quorum import acceptor, wire
from supervisor.cluster.quorum.client import POLL_S, HostLink, polled

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.cluster.quorum.acceptor import AcceptorState
    from supervisor.cluster.quorum.wire import RegisterHosts

JOIN_S = 0.5
#: A host that cannot vote yet reports for whom it waits after so long, once.
REPORT_S = 20.0
#: Connections at a time, the oldest is closed for another one: each node of a job has one.
MOST_CONNECTIONS = 4096


@dataclass(frozen=True, slots=True)
class KeptAcceptor:
    """The content of cluster/acceptor.json. register: RegisterHosts.digest, another one's is not used."""

    register: str
    state: acceptor.AcceptorState


class AcceptorServer:
    """An acceptor that is served from `start` to `close`. warn: prints a line, from any thread."""

    def __init__(self, listener: socket.socket, hosts: RegisterHosts, index: int, path: Path, warn: Callable[[str], None]) -> None:
        self._hosts, self._index, self._path, self._warn = hosts, index, path, warn
        self._lock = threading.Lock()  # of the state, which two threads change
        self._state: AcceptorState | None = None
        self._is_reported = False
        self._closing = threading.Event()
        self._connections: dict[LineSocket, bool] = {}  # whether it greeted
        self._selector = selectors.DefaultSelector()
        self._listener = LineListener(listener, self._selector)
        self._threads = [
            threading.Thread(target=self._run, name="register-acceptor", daemon=True),
            threading.Thread(target=self._join, name="register-join", daemon=True),
        ]

    def start(self) -> None:
        """Begin to serve."""
        for thread in self._threads:
            thread.start()

    def close(self, within_s: float = 2.0) -> None:
        """End it; a disk that hangs is not waited for."""
        self._closing.set()
        for thread in self._threads:
            thread.join(within_s)

    @property
    def votes(self) -> bool:
        """Whether it has joined."""
        return self._state is not None and self._state.votes

    # the state

    def _read(self) -> AcceptorState | None:
        """Return what is on the disk, a new state where nothing of this register is. None where the disk fails: that is not forgetting."""
        try:
            kept = msgspec.convert(json.loads(self._path.read_bytes()), KeptAcceptor)
        except FileNotFoundError:
            kept = None
        except (OSError, ValueError) as error:
            self._report(f"{self._path} cannot be read: {error}; this host does not vote on who serves the control store")
            return None
        if kept is not None and kept.register == self._hosts.digest:
            return kept.state
        new = acceptor.new_acceptor(self._index, len(self._hosts.hosts), secrets.token_hex(8))
        return new if self._is_written(new) else None

    def _is_written(self, state: AcceptorState) -> bool:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            staging.write(str(self._path), json.dumps(asdict(KeptAcceptor(self._hosts.digest, state))).encode())
        except OSError as error:
            self._report(f"{self._path} is not written: {error}; this host does not vote on who serves the control store")
            return False
        return True

    def _changed(self, change: Callable[[AcceptorState], AcceptorState]) -> bool:
        """Change the state, on disk first; whether it is there. The caller holds the lock."""
        if self._state is None:
            return False
        after = change(self._state)
        if after is not self._state and not self._is_written(after):
            return False
        self._state = after
        return True

    def _answer(self, line: bytes) -> bytes | None:
        """Return the answer to a request, None where there is none. Raises ValueError where it is no request."""
        request, size = wire.request_of(line), len(self._hosts.hosts)
        if isinstance(request, acceptor.JoinRegister) and not 0 <= request.index < size:
            raise ValueError("no host of the list")
        found: list[acceptor.AcceptorAnswer] = []

        def change(state: AcceptorState) -> AcceptorState:
            after, answer = acceptor.answered(state, request)
            found.append(answer)
            return state if after == state else after

        with self._lock:
            return wire.encode_answer(found[0]) if self._changed(change) else None

    def _report(self, why: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._warn(why)

    # the threads

    def _join(self) -> None:
        with self._lock:
            self._state = state = self._read()
        links = {index: HostLink(self._hosts, index) for index in range(len(self._hosts.hosts)) if index != self._index}
        since_t, is_reported = time.monotonic(), False
        while state is not None and not state.votes and not self._closing.is_set():
            answers = polled(links, acceptor.join_request(state), time.monotonic() + POLL_S, lambda _answers: False)
            with self._lock:
                self._changed(lambda before, answers=answers: acceptor.joined(before, answers))  # type: ignore[misc]
                state = self._state
            if state is None or state.votes:
                break
            if not is_reported and time.monotonic() - since_t > REPORT_S:
                is_reported = True
                self._warn(self._waits_for(links))
            self._closing.wait(JOIN_S)
        for link in links.values():
            link.close()

    def _waits_for(self, links: dict[int, HostLink]) -> str:
        silent = [f"{self._hosts.hosts[index][0]} ({link.why})" for index, link in links.items() if link.why]
        return (
            f"this host does not vote yet on who serves the control store: it has no file of it, so all hosts of the list must answer once;"
            f" missing: {', '.join(silent) or 'hosts that vote: too many lost their disk, give the job another --rdzv-id'}"
        )

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._listener.tick()
                for key, mask in self._selector.select(0.2):
                    if key.data is self._listener:
                        self._accept()
                    else:
                        self._serve(key.data, mask)
        finally:
            for connection in list(self._connections):
                connection.close()
            self._listener.close()
            self._selector.close()

    def _accept(self) -> None:
        lines = self._listener.accept()
        if lines is None:
            return
        if len(self._connections) >= MOST_CONNECTIONS:
            self._drop(next(iter(self._connections)))
        self._connections[lines] = False
        self._selector.register(lines.sock, selectors.EVENT_READ, lines)

    def _serve(self, connection: LineSocket, mask: int) -> None:
        if connection not in self._connections:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                connection.flush()
            if mask & selectors.EVENT_READ:
                for line in connection.lines():
                    self._on_line(connection, line)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_unsent else 0)
            if self._selector.get_key(connection.sock).events != events:
                self._selector.modify(connection.sock, events, connection)
        except (OSError, ValueError):
            self._drop(connection)

    def _on_line(self, connection: LineSocket, line: bytes) -> None:
        if not self._connections[connection]:
            if line != self._hosts.greeting():
                connection.send(wire.REFUSED)
                raise ConnectionAbortedError("no host of this register")
            self._connections[connection] = True
            return
        answer = self._answer(line)
        if answer is None:
            raise ConnectionAbortedError("no state, or no disk for it")
        connection.send(answer)

    def _drop(self, connection: LineSocket) -> None:
        del self._connections[connection]
        self._selector.unregister(connection.sock)
        connection.close()
