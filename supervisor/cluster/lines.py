"""A non-blocking stream socket as lines: what came whole, and what is still to be sent; and a listener for such sockets."""

from __future__ import annotations

import selectors
import socket
import time
from typing import TYPE_CHECKING

from supervisor.cluster.wire import LONGEST_LINE

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 256 * 1024
#: A peer that takes nothing of so much any more is closed; it reads everything again over its next connection.
MOST_UNSENT = 64 * 2**20
#: How long nobody is accepted where this process has no descriptor left: the listener stays readable, and would be tried without end.
PAUSE_S = 0.5


class LineSocket:
    """One connection. Its methods raise OSError where the connection has ended, or has to end."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0.0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.sock = sock
        self._in = bytearray()
        self._out = bytearray()

    def fileno(self) -> int:
        """Return its descriptor, for a selector."""
        return self.sock.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether it waits for the peer to take more."""
        return bool(self._out)

    def lines(self) -> Iterator[bytes]:
        """Read what is there, and yield every whole line, with its end."""
        try:
            chunk = self.sock.recv(_CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            raise ConnectionResetError("closed by the peer")
        start = max(len(self._in) - 1, 0)
        self._in += chunk
        while (end := self._in.find(b"\n", start)) >= 0:
            line = bytes(self._in[: end + 1])
            del self._in[: end + 1]
            start = 0
            yield line
        if len(self._in) > LONGEST_LINE:
            raise ConnectionAbortedError(f"a line of more than {LONGEST_LINE} bytes")

    def send(self, data: bytes) -> None:
        """Send as much as the peer takes now, and keep the rest."""
        self._out += data
        self.flush()
        if len(self._out) > MOST_UNSENT:
            raise ConnectionAbortedError(f"the peer left {len(self._out)} bytes unread")

    def flush(self) -> None:
        """Send what is left, as far as the peer takes it."""
        while self._out:
            try:
                sent = self.sock.send(memoryview(self._out)[:_CHUNK])
            except BlockingIOError:
                return
            del self._out[:sent]

    def close(self) -> None:
        """Close it."""
        self.sock.close()


class LineListener:
    """A listening socket that stands in a selector, but for a moment after it could accept nobody. One thread uses it."""

    def __init__(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        listener.settimeout(0.0)
        selector.register(listener, selectors.EVENT_READ, self)
        self._listener, self._selector = listener, selector
        self._again_t: float | None = None  # when it stands in the selector again

    def accept(self) -> LineSocket | None:
        """Return who connects, None where he has gone again, or there is no descriptor for him: then he waits in the backlog."""
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return None
        except OSError:
            self._selector.unregister(self._listener)
            self._again_t = time.monotonic() + PAUSE_S
            return None
        try:
            return LineSocket(sock)
        except OSError:
            sock.close()
            return None

    def tick(self) -> None:
        """Accept again once the moment is over. To be called several times in a second."""
        if self._again_t is not None and time.monotonic() >= self._again_t:
            self._again_t = None
            self._selector.register(self._listener, selectors.EVENT_READ, self)

    def close(self) -> None:
        """Close it."""
        self._listener.close()
