"""The drain: reads what the ranks write, at once, and passes it on.

Of each stream it keeps the last 16 KiB in memory, passes bytes to our stdout or stderr where the launcher would have shown them, and gives
all to the log. One thread owns the selector and all streams; `add`, `relocate`, `resize` and `sync` never block. A rank waits only where
it would have waited without us: when the reader of our stdout is slow.

Lines of different ranks are not torn: the drain stays on one stream until it is empty or at a line end, at most TURN_BYTES.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import termios
import threading
import time

from .critical_threads import start_critical
from .spawn import copy_window_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .logs import Appender, LogFile
    from .passthrough import Passthrough

TAIL_BYTES = 16 * 1024
TURN_BYTES = 1024 * 1024
_READ_BYTES = 64 * 1024
_POLL_S = 0.01


class OutputStream:
    """One rank's output: where it comes from, where it goes, and how it ended so far. Rank -1 is the agent itself.

    Without a log its tail is what will be logged.
    """

    __slots__ = ("attempt", "fd", "held", "log", "name", "open", "paused", "pty", "rank", "tail", "to")

    def __init__(  # noqa: PLR0913 - the facts of a stream
        self, fd: int, attempt: int, rank: int, name: str, *, to: Passthrough | None, log: LogFile | None, pty: bool
    ) -> None:
        self.fd = fd
        self.attempt = attempt
        self.rank = rank
        self.name = name
        self.to = to
        self.log = log
        self.pty = pty
        self.tail = bytearray()
        self.held = b""
        self.open = True
        self.paused = False


class DrainRequest:
    """A request: read all bytes of now, then `done` is called (in the drain's thread) with the streams.

    It waits at most `pass_s` for our stdout and stderr and `log_s` for the disk to have taken everything, and with `to_the_end`
    for as long as any process holds a stream open.
    """

    __slots__ = ("done", "fresh", "log_until", "pass_until", "to_the_end")

    def __init__(
        self, done: Callable[[list[OutputStream]], None], *, pass_s: float = 0.0, log_s: float = 0.0, to_the_end: bool = False
    ) -> None:
        now = time.monotonic()
        self.done = done
        self.fresh = True
        self.pass_until = now + pass_s
        self.log_until = now + log_s
        self.to_the_end = to_the_end


class Drain:
    """The drain thread."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self._passes: list[Passthrough] = []
        self._streams: dict[int, OutputStream] = {}
        self._ended: list[OutputStream] = []
        self._tasks: list[Callable[[], None]] = []
        self._syncs: list[DrainRequest] = []
        self._poll_s = _POLL_S
        self._lock = threading.Lock()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def start(self, passes: list[Passthrough]) -> None:
        """Begin to read; `passes` are the destinations that streams may name."""
        self._passes = passes
        start_critical(self._run)

    def wake(self) -> None:
        """Have the drain check paused streams and requests again."""
        os.eventfd_write(self._wakeup, 1)

    def add(self, stream: OutputStream) -> None:
        """Read this stream from now on; its descriptor is closed at its end."""
        self._later(lambda: self._adopt(stream))

    def relocate(self, rank: int, attempt: int, log_for: Callable[[OutputStream], LogFile | None]) -> None:
        """Count the open streams of `rank` to another attempt and log them there; ended ones too that have no log yet."""
        self._later(lambda: self._move(rank, attempt, log_for))

    def resize(self, resized: Callable[[], None]) -> None:
        """Give every pseudo-terminal the size of the real one, then, if there is any, call `resized` (in the drain's thread)."""
        self._later(lambda: self._resize(resized))

    def sync(self, request: DrainRequest) -> None:
        """Queue the request."""
        self._later(lambda: self._syncs.append(request))

    def _later(self, task: Callable[[], None]) -> None:
        with self._lock:
            self._tasks.append(task)
        self.wake()

    def _run(self) -> None:
        while True:
            ready = [key.fd for key, _ in self._selector.select(self._poll_s if self._syncs else None)]
            if self._wakeup in ready:  # first: a request that came before a byte counts for that byte
                self._answer_wakeup()
            for fd in ready:
                if fd in self._streams and not self._streams[fd].paused:
                    self._turn(self._streams[fd], greedy=False)
            if self._syncs:
                self._serve_syncs()

    def _answer_wakeup(self) -> None:
        os.eventfd_read(self._wakeup)
        with self._lock:
            tasks, self._tasks = self._tasks, []
        for task in tasks:
            task()
        for stream in self._streams.values():
            if stream.paused and not _blocked(stream):
                stream.paused = False
                self._selector.register(stream.fd, selectors.EVENT_READ)

    def _adopt(self, stream: OutputStream) -> None:
        os.set_blocking(stream.fd, False)
        self._streams[stream.fd] = stream
        self._selector.register(stream.fd, selectors.EVENT_READ)
        # two attempts are enough to explain why the last one ended; memory stays bounded over many restarts
        self._ended = [old for old in self._ended if old.attempt >= stream.attempt - 1]

    def _move(self, rank: int, attempt: int, log_for: Callable[[OutputStream], LogFile | None]) -> None:
        for stream in (*self._streams.values(), *(ended for ended in self._ended if ended.log is None)):
            if stream.rank == rank:
                before, stream.attempt, stream.log = stream.log, attempt, log_for(stream)
                if before is not None:
                    self._appender.close(before)
                elif stream.log is not None and stream.tail:
                    self._appender.put(stream.log, bytes(stream.tail))
                    if not stream.open:
                        self._appender.close(stream.log)

    def _resize(self, resized: Callable[[], None]) -> None:
        masters = [stream.fd for stream in self._streams.values() if stream.pty]
        for master in masters:
            copy_window_size(master)
        if masters:
            resized()

    def _turn(self, stream: OutputStream, *, greedy: bool) -> None:
        """Read one stream until it is empty, at a line end, or had its turn. `greedy`: also past a slow reader of our output."""
        total = 0
        while total < TURN_BYTES:
            if not greedy and _blocked(stream):
                self._pause(stream)
                return
            try:
                chunk = os.read(stream.fd, _READ_BYTES)
            except BlockingIOError:
                return
            except OSError:  # EIO: the last slave of a pseudo-terminal was closed
                chunk = b""
            if not chunk:
                self._end(stream)
                return
            total += len(chunk)
            data = stream.held + chunk
            cut = _cut(stream.fd, data, full=len(chunk) == _READ_BYTES)
            stream.held = data[cut:]
            self._take(stream, data[:cut])
            if not greedy and (stream.held or data.endswith(b"\n")):
                return

    def _pause(self, stream: OutputStream) -> None:
        if not stream.paused:
            stream.paused = True
            self._selector.unregister(stream.fd)  # a hang-up is reported even with no event asked for: it would spin

    def _take(self, stream: OutputStream, data: bytes) -> None:
        tail = stream.tail
        tail += data[-TAIL_BYTES:]
        if len(tail) > 2 * TAIL_BYTES:
            del tail[:-TAIL_BYTES]
        if stream.to is not None:
            stream.to.put(data)
        if stream.log is not None:
            self._appender.put(stream.log, data)

    def _end(self, stream: OutputStream) -> None:
        if stream.held:
            self._take(stream, stream.held)
            stream.held = b""
        if not stream.paused:
            self._selector.unregister(stream.fd)
        del self._streams[stream.fd]
        os.close(stream.fd)
        stream.open = False
        if stream.log is not None:
            self._appender.close(stream.log)
        self._ended.append(stream)

    def _serve_syncs(self) -> None:
        # past a slow reader once per request only: what such a stream still holds is at most its pipe
        greedy = any(sync.fresh for sync in self._syncs)
        for stream in list(self._streams.values()):
            self._turn(stream, greedy=greedy)
        waiting = []
        for sync in self._syncs:
            if self._satisfied(sync):
                sync.done([*self._ended, *self._streams.values()])
            else:
                sync.fresh = False
                waiting.append(sync)
        self._syncs = waiting
        self._poll_s = _POLL_S if greedy else min(0.5, 2 * self._poll_s)

    def _satisfied(self, sync: DrainRequest) -> bool:
        now = time.monotonic()
        shown = now >= sync.pass_until or all(each.idle for each in self._passes)
        logged = now >= sync.log_until or self._appender.idle
        return shown and logged and not (sync.to_the_end and self._streams)


def _blocked(stream: OutputStream) -> bool:
    return stream.to is not None and stream.to.full


def _cut(fd: int, data: bytes, *, full: bool) -> int:
    """Return how much of `data` to pass on now.

    In the middle of a flood (a full read, and more is waiting) only up to the last line end, so that another rank's line can
    come between; the rest goes first when its turn comes, which is at once.
    """
    if not full or data.endswith(b"\n") or not _waiting_bytes(fd):
        return len(data)
    return data.rfind(b"\n") + 1 or len(data)


def _waiting_bytes(fd: int) -> int:
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"), "little")
    except OSError:
        return 0
