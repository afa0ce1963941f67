"""Passes bytes through to one of our own standard streams, losing none.

A thread of its own writes, because a write to a terminal or a full pipe blocks, and the descriptor cannot be made non-blocking (the shell
shares its open file). A slow reader causes back-pressure: `full` becomes True, and the drain stops reading for this stream. A closed stream
(EPIPE) is reported once, and its output discarded. A full disk behind a redirected stdout costs bytes, counted, and never the rank.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time

from .critical_threads import start_critical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PENDING_BYTES = 256 * 1024
_CLOSED = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ECONNRESET, errno.ENXIO})


class Passthrough:
    """One destination. `on_room` is called when it is no longer full, `on_closed` once when its reader is gone.

    `on_loss` is called when a full disk behind it took less than was written.
    """

    def __init__(self, fd: int, on_room: Callable[[], None], on_closed: Callable[[], None], on_loss: Callable[[], None]) -> None:
        self.fd = fd
        self.closed = False
        self.dropped_bytes = 0
        self.error: str | None = None
        self.line_unfinished = False  # the last write has no line end
        self._on_room = on_room
        self._on_closed = on_closed
        self._on_loss = on_loss
        self._pieces: list[bytes] = []
        self._pending = 0
        self._changed = threading.Condition(threading.Lock())
        start_critical(self._run)

    @property
    def full(self) -> bool:
        """True while nothing more should be put: the reader is slower than the ranks."""
        return self._pending >= PENDING_BYTES

    @property
    def idle(self) -> bool:
        """True when everything that was put has been written (or can never be)."""
        return self._pending == 0

    def put(self, data: bytes) -> None:
        """Take bytes to write; never blocks."""
        if self.closed:
            return
        with self._changed:
            self._pieces.append(data)
            self._pending += len(data)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._pieces:
                    self._changed.wait()
            self._write_all()

    def _write_all(self) -> None:
        with self._changed:
            data = b"".join(self._pieces)
            self._pieces.clear()
        self._write(data)
        with self._changed:
            was_full = self.full
            self._pending -= len(data)
        if was_full:
            self._on_room()

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self.closed:
            try:
                rest = rest[os.write(self.fd, rest) :]
                self.line_unfinished = not rest and not data.endswith(b"\n")
            except BlockingIOError:  # its opener made it non-blocking
                waiting = select.poll()
                waiting.register(self.fd, select.POLLOUT)
                waiting.poll(1000)
            except OSError as error:
                if error.errno in _CLOSED:
                    self.closed = True
                    self._on_closed()
                    return
                self.dropped_bytes += len(rest)
                self.error = f"{'stdout' if self.fd == 1 else 'stderr'}: {error.strerror}"
                self._on_loss()
                time.sleep(0.05)  # a full disk answers at once: do not spin on it
                return
