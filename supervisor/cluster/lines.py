"""A non-blocking connection as messages, whole ones received and those to send; a listener, and a thread's inbox, for its selector.

A message travels in lines: `.` before one that is whole, `+` before a piece that others follow, `=` before the last piece. So a long
message holds up no other connection, and a beat may overtake its pieces. A line with another first byte is itself the message: a greeting.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import selectors
import socket
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes of a line, without its mark and its end.
PIECE = 256 * 1024
_LONGEST_LINE = PIECE + 2
_CHUNK = 256 * 1024
_LINES = 64  # that are sent at once
#: A peer that takes nothing of so much any more is closed; over its next connection it gets what counts then.
MOST_UNSENT = 64 * 2**20
#: How long nobody is accepted where this process has no descriptor left: the listener stays readable, and would be tried without end.
PAUSE_S = 0.5
#: A host that does not acknowledge for this long is unreachable. The host of a stopped process acknowledges. (TCP_USER_TIMEOUT would end
#: the connection of such a process too, once it has taken all that fits.)
UNREACHABLE_S = 5
_PROBE_S = 1  # after so long without a byte the host is asked, and then as often
#: With which the kernel ends a connection to such a host.
_UNREACHABLE = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})
#: Fields of the kernel's tcp_info: segments that are not acknowledged, and milliseconds since the last acknowledgement.
_TCP_INFO = struct.Struct("24xI28xI")

_Item = TypeVar("_Item")


class MessageTooLong(OSError):  # noqa: N818  it says what happened
    """The peer sends a message that is too long. Later bytes of the connection are not read."""


class ClosedByPeer(OSError):  # noqa: N818  likewise
    """The peer has ended the connection in good order: it had read all messages by then."""


def unanswered_s(error: OSError | None) -> float:
    """Return for how long the peer's host was unreachable when a connection ended with this error. None: `is_unreachable` showed it."""
    return UNREACHABLE_S if error is None or error.errno in _UNREACHABLE else 0.0


def in_lines(message: bytes) -> tuple[bytes, ...]:
    """Return the lines in which a message travels. It has no line end."""
    if len(message) <= PIECE:
        return (b"." + message + b"\n",)
    starts = range(0, len(message), PIECE)
    return tuple((b"=" if start + PIECE >= len(message) else b"+") + message[start : start + PIECE] + b"\n" for start in starts)


class LineSocket:
    """One connection. Its methods raise OSError where the connection has ended, or has to end. longest: bytes of a message."""

    def __init__(self, sock: socket.socket, longest: int) -> None:
        sock.settimeout(0.0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, UNREACHABLE_S - _PROBE_S))
        self.sock = sock
        self.longest = longest
        self._in = bytearray()
        self._pieces = bytearray()  # of a message that is not whole yet
        self._queue: deque[bytes] = deque()  # lines that other connections may have too
        self._sent_bytes = 0  # bytes of the first of them
        self._unsent = 0  # bytes of all

    def fileno(self) -> int:
        """Return its descriptor, for a selector."""
        return self.sock.fileno()

    @property
    def peer(self) -> str:
        """The address of its host, "" where it has gone."""
        try:
            return str(self.sock.getpeername()[0]).removeprefix("::ffff:")
        except OSError:
            return ""

    @property
    def has_unsent(self) -> bool:
        """Whether it waits for the peer to take more."""
        return bool(self._queue)

    @property
    def is_unreachable(self) -> bool:
        """Whether the peer's host does not acknowledge the sent bytes. Where nothing is under way the kernel ends the connection itself."""
        unacknowledged, silent_ms = _TCP_INFO.unpack(self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
        return bool(unacknowledged) and silent_ms > 1000 * UNREACHABLE_S

    def messages(self) -> Iterator[bytes]:
        """Read the waiting bytes, and yield every whole message."""
        try:
            chunk = self.sock.recv(_CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            raise ClosedByPeer("closed by the peer")
        start = len(self._in)
        self._in += chunk
        while (end := self._in.find(b"\n", start)) >= 0:
            line = bytes(self._in[:end])
            del self._in[: end + 1]
            start = 0
            message = self._message(line)
            if message is not None:
                yield message
        if len(self._in) > _LONGEST_LINE:
            raise ConnectionAbortedError(f"a line of more than {_LONGEST_LINE} bytes")

    def _message(self, line: bytes) -> bytes | None:
        """Return the message that ends with this line, None where more of it follows."""
        mark = line[:1]
        if mark not in {b"+", b"="}:
            return line[1:] if mark == b"." else line
        self._pieces += memoryview(line)[1:]
        if len(self._pieces) > self.longest:
            raise MessageTooLong(f"a message of more than {self.longest} bytes")
        if mark == b"+":
            return None
        message, self._pieces = bytes(self._pieces), bytearray()
        return message

    def put(self, lines: tuple[bytes, ...], *, overtakes: bool = False) -> None:
        """Have this sent at the next `flush`. overtakes: before the lines that wait."""
        if overtakes and self._queue:
            for index, line in enumerate(lines, 1 if self._sent_bytes else 0):
                self._queue.insert(index, line)
        else:
            self._queue.extend(lines)
        self._unsent += sum(map(len, lines))

    def flush(self) -> None:
        """Send as much as the peer takes now, and keep the rest."""
        while self._queue:
            lines: list[memoryview | bytes] = [memoryview(self._queue[0])[self._sent_bytes :], *itertools.islice(self._queue, 1, _LINES)]
            try:
                count = self.sock.sendmsg(lines)
            except BlockingIOError:
                break
            self._unsent -= count
            self._sent_bytes += count
            while self._queue and self._sent_bytes >= len(self._queue[0]):
                self._sent_bytes -= len(self._queue.popleft())
        if self._unsent > MOST_UNSENT:
            raise ConnectionAbortedError(f"the peer left {self._unsent} bytes unread")

    def discard(self) -> None:
        """Read the waiting bytes, and forget them: if they stayed unread, the end of the connection would destroy the last message."""
        with contextlib.suppress(BlockingIOError):
            if not self.sock.recv(_CHUNK):
                raise ClosedByPeer("closed by the peer")

    def say_no_more(self) -> None:
        """Send nothing more. The peer's end of the connection shows that it has read all of it."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close it."""
        self.sock.close()


class LineListener:
    """A listening socket that is in a selector, but for a moment after it could accept nobody. One thread uses it."""

    def __init__(self, listener: socket.socket, selector: selectors.BaseSelector, longest: int) -> None:
        listener.settimeout(0.0)
        selector.register(listener, selectors.EVENT_READ, self)
        self._listener, self._selector, self._longest = listener, selector, longest
        self._again_t: float | None = None  # when it is in the selector again

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
            return LineSocket(sock, self._longest)
        except OSError:
            sock.close()
            return None

    def tick(self) -> None:
        """Accept again once the moment is over. To be called several times in a second."""
        if self._again_t is not None and time.monotonic() >= self._again_t:
            self._again_t = None
            self._selector.register(self._listener, selectors.EVENT_READ, self)

    def close(self) -> None:
        """Close it, and take it out of its selector."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._listener)
        self._listener.close()


class Inbox(Generic[_Item]):
    """Items from other threads to the thread that waits in a selector. Its descriptor is there with the inbox as its data."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._items: deque[_Item] = deque()
        self._wake, self._woken = socket.socketpair()
        self._wake.settimeout(0.0)  # a full pipe wakes as well
        self._woken.settimeout(0.0)
        selector.register(self._woken, selectors.EVENT_READ, self)

    def give(self, item: _Item) -> None:
        """Add this, and wake the thread."""
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Wake the thread."""
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    def items(self) -> Iterator[_Item]:
        """Yield the items, also those given meanwhile, in their order."""
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        while self._items:
            yield self._items.popleft()

    def close(self) -> None:
        """Close it."""
        self._wake.close()
        self._woken.close()
