"""Appends the ranks' output to files, at the disk's own pace.

A full, failing or hung disk costs log bytes and never a rank's time: blocks that do not fit in the queue (QUEUE_BYTES) or cannot be written
are dropped and counted. A line in the file reports the count when the disk works again. Files are rotated within the attempt. Everything
that may block (mkdir, open, write, rename) happens in this module's one thread.

Beside rank-0.out lies rank-0.out.times: lines of a Unix time and the offset of the bytes that follow, at most one each TIME_EVERY_S. It
serves `supervise logs`, goes through the rotations with its file, and a time that cannot be written is left out.
"""

from __future__ import annotations

import os
import threading
import time

from .critical_threads import start_critical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUEUE_BYTES = 32 * 1024 * 1024  # a burst of ranks beside a busy disk is kept; the memory is taken only while the disk is behind
KEPT = 5  # files per stream, the current one included
RETRY_S = 1.0
TIMES_SUFFIX = ".times"
TIME_EVERY_S = 1.0
_MERGE_BYTES = 1024 * 1024


class LogFile:
    """One stream's file and the facts about it. `limit_bytes` is the size at which it is rotated."""

    __slots__ = ("at_line_start", "fd", "limit_bytes", "lost_bytes", "path", "retry_at", "size", "timed_at", "times_fd")

    def __init__(self, path: str, limit_bytes: int) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.fd = -1
        self.size = 0
        self.retry_at = 0.0
        self.lost_bytes = 0
        self.at_line_start = True
        self.times_fd = -1
        self.timed_at = 0.0


class Appender:
    """The append thread and its queue. `on_loss` is called, from any thread, whenever bytes were dropped."""

    def __init__(self, on_loss: Callable[[], None]) -> None:
        self.dropped_bytes = 0
        self.error: str | None = None
        self._on_loss = on_loss
        self._blocks: list[tuple[LogFile, bytes | None]] = []
        self._pending = 0
        self._changed = threading.Condition(threading.Lock())
        start_critical(self._run)

    @property
    def idle(self) -> bool:
        """True when all that was accepted is written or dropped."""
        return self._pending == 0

    def put(self, log: LogFile, data: bytes) -> None:
        """Take bytes for a file; drops and counts them where the disk is too far behind."""
        with self._changed:
            fits = self._pending + len(data) <= QUEUE_BYTES
            if fits:
                self._blocks.append((log, data))
                self._pending += len(data)
                self._changed.notify()
            else:
                self._lose(log, len(data))
                self.error = "the log disk is too slow or does not answer"
        if not fits:
            self._on_loss()

    def close(self, log: LogFile) -> None:
        """Close the file once everything before is written."""
        with self._changed:
            self._blocks.append((log, None))
            self._changed.notify()

    def _lose(self, log: LogFile, count: int) -> None:
        self.dropped_bytes += count
        log.lost_bytes += count

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._blocks:
                    self._changed.wait()
            self._write_all()  # a function of its own: while waiting, no local name may hold a block

    def _write_all(self) -> None:
        with self._changed:
            blocks, self._blocks = self._blocks, []
        for log, data in _merged(blocks):
            if data is None:
                _close(log)
                continue
            self._append(log, data)
            with self._changed:
                self._pending -= len(data)

    def _append(self, log: LogFile, data: bytes) -> None:
        rest = memoryview(data)
        try:
            if log.fd < 0:
                if time.monotonic() < log.retry_at:
                    raise BlockingIOError  # waiting to try again: one place counts the losses
                _open(log)
            self._record_loss(log)
            while rest:
                if log.size >= log.limit_bytes:
                    _rotate(log)
                _note_time(log)
                written = os.write(log.fd, rest[: log.limit_bytes - log.size])
                log.size += written
                log.at_line_start = rest[written - 1] == ord("\n")
                rest = rest[written:]
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                self.error = f"{error.strerror}: {log.path}"
                log.retry_at = time.monotonic() + RETRY_S
                _close(log)
            with self._changed:
                self._lose(log, len(rest))
            self._on_loss()

    def _record_loss(self, log: LogFile) -> None:
        """Write into the file how many bytes are missing from it."""
        if not log.lost_bytes:
            return
        with self._changed:
            lost, log.lost_bytes = log.lost_bytes, 0
        try:
            line = f"{'' if log.at_line_start else chr(10)}[supervise] {lost} bytes of this log were dropped\n".encode()
            log.size += os.write(log.fd, line)
            log.at_line_start = True
        except OSError:
            log.lost_bytes += lost
            raise


def _merged(blocks: list[tuple[LogFile, bytes | None]]) -> Iterator[tuple[LogFile, bytes | None]]:
    """Join neighbours for the same file: a rank that prints line by line costs one write, not one per line."""
    run: list[bytes] = []
    size = 0
    for at, (log, data) in enumerate(blocks):
        if data is None:
            yield log, None
            continue
        run.append(data)
        size += len(data)
        follower, more = blocks[at + 1] if at + 1 < len(blocks) else (None, None)
        if follower is not log or more is None or size >= _MERGE_BYTES:
            yield log, b"".join(run)
            run, size = [], 0


def _open(log: LogFile) -> None:
    os.makedirs(os.path.dirname(log.path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120 - pathlib is too big for the guardian
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY
    log.fd = os.open(log.path, flags, 0o600)
    log.size = os.fstat(log.fd).st_size
    log.timed_at = 0.0
    try:
        log.times_fd = os.open(log.path + TIMES_SUFFIX, flags, 0o600)
    except OSError:
        log.times_fd = -1


def _note_time(log: LogFile) -> None:
    """Note when the bytes that follow are written."""
    now = time.time()
    if log.times_fd < 0 or 0 <= now - log.timed_at < TIME_EVERY_S:
        return
    log.timed_at = now
    try:
        os.write(log.times_fd, b"%.1f %d\n" % (now, log.size))
    except OSError:
        return  # the bytes themselves report the fault of the disk


def _close(log: LogFile) -> None:
    fds = [fd for fd in (log.fd, log.times_fd) if fd >= 0]
    log.fd = log.times_fd = -1
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            continue  # a late write error of a network file system; the descriptor is gone all the same


def _rotate(log: LogFile) -> None:
    _close(log)
    for number in range(KEPT - 2, -1, -1):
        older = f"{log.path}.{number}" if number else log.path
        for suffix in (TIMES_SUFFIX, ""):  # the reader of a part that is there finds its times
            if os.path.exists(older + suffix):  # noqa: PTH110 - as in _open
                os.replace(older + suffix, f"{log.path}.{number + 1}{suffix}")  # noqa: PTH105 - as in _open
    _open(log)
