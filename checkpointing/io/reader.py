"""Reads a file that may be torn, huge, hung or no file at all, without harm to others.

`FileReader` reads in pieces of at most `CHUNK_BYTES`, never faster than its throttle allows, and gives the page cache back if asked to. It
never opens a FIFO or a device: a reader on a FIFO would let its writer go on and then kill it with SIGPIPE. One reader belongs to one
thread.
"""

from __future__ import annotations

import copy
import os
import stat
import threading
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK_BYTES: Final = 1 << 20  # of any stream: few calls, and little memory for each of the threads
DROP_EVERY_BYTES: Final = 8 << 20  # how much of another's page cache we may displace before we give it back
UNLIMITED: Final = 1e18  # no disk gives that; finite, since no time at all may pass between two calls
BACKGROUND_BYTES_PER_S: Final = 200e6  # docs/explanation/design.md section 8: the cap of background reading on a node


class Interrupted(Exception):  # noqa: N818 -- not an error: the caller asked for it
    """Reading was given up because the caller asked for it."""


class Short(Exception):  # noqa: N818 -- a fact about the file, not an error of ours
    """The file ended before the bytes that were asked for."""


class NotRegular(Exception):  # noqa: N818 -- a fact about the path, not an error of ours
    """The path is no regular file. `what` names what it is instead."""

    def __init__(self, what: str) -> None:
        """Keep what it is."""
        super().__init__(what)
        self.what = what


class Throttle:
    """A token bucket of bytes. Thread-safe: several readers of one node may share it.

    `clock` gives monotonic seconds and `wait` sleeps for seconds; both are injected so that a test needs no time and a watcher can
    wait on its stop event. `burst_bytes` may be taken at once after a pause. `taken` gets the bytes of each call, for a progress bar.
    """

    def __init__(
        self,
        rate_bytes_per_s: float = BACKGROUND_BYTES_PER_S,
        *,
        burst_bytes: int = 4 * CHUNK_BYTES,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
        taken: Callable[[int], object] = lambda _n_bytes: None,
    ) -> None:
        """Begin with a full bucket."""
        self._taken = taken
        self._rate = rate_bytes_per_s
        self._burst = float(burst_bytes)
        self._clock = clock
        self._wait = wait
        self._lock = threading.Lock()
        self._tokens = self._burst
        self._at = clock()

    def take(self, n_bytes: int) -> None:
        """Wait until `n_bytes` may be read. The debt of one call is waited for by that call, outside the lock."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - n_bytes
            self._at = now
            debt_s = -self._tokens / self._rate
        if debt_s > 0:
            self._wait(debt_s)
        self._taken(n_bytes)

    def lift(self) -> None:
        """Let everything through from now on."""
        with self._lock:
            self._rate = UNLIMITED


def never() -> bool:
    """Answer that nobody asked to stop."""
    return False


def kind_of(mode: int) -> str:
    """Name what a path is that is not a regular file."""
    for test, name in ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket")):
        if test(mode):
            return name
    return "a device"


class FileReader:
    """A regular file opened for reading at offsets. Use as a context manager."""

    def __init__(
        self,
        path: str,
        *,
        throttle: Throttle | None = None,
        drop_cache: bool = False,
        interrupted: Callable[[], bool] = never,
    ) -> None:
        """Open `path`. Raises NotRegular, or OSError where it cannot be opened."""
        self._throttle = throttle
        self._drop_cache = drop_cache
        self._interrupted = interrupted
        before = os.stat(path)  # noqa: PTH116 -- paths are plain strings throughout the package, as the script gets them
        if not stat.S_ISREG(before.st_mode):
            raise NotRegular(kind_of(before.st_mode))
        # O_NONBLOCK and the second look: between stat and open the path may have become a FIFO
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        self.stat_opened = os.fstat(self._fd)
        if not stat.S_ISREG(self.stat_opened.st_mode):
            os.close(self._fd)
            raise NotRegular(kind_of(self.stat_opened.st_mode))
        self.size = self.stat_opened.st_size
        self._begin = 0
        self._buffer = bytearray(CHUNK_BYTES)
        self._undropped = 0

    def __enter__(self) -> Self:
        """Return the source itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Return the descriptor back, and the page cache where asked."""
        if self._undropped:
            self._drop()
        os.close(self._fd)

    def stat_now(self) -> os.stat_result:
        """Stat the open file again."""
        return os.fstat(self._fd)

    def window(self, offset: int, length: int) -> FileReader:
        """Return a part of the file as if it were a file of its own. It borrows the descriptor: it is not closed, nor outlives this."""
        part = copy.copy(self)
        part._begin = self._begin + offset  # noqa: SLF001 -- one of our own kind
        part.size = max(0, min(length, self.size - offset))
        return part

    def read(self, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes at `offset`; the caller bounds `length`. Raises Short, Interrupted, OSError."""
        return b"".join(bytes(piece) for piece in self.stream(offset, length))

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        """Yield the bytes from `offset` on in pieces. A piece is valid until the next is asked for. Raises Short, Interrupted, OSError."""
        end = self._begin + offset + length
        limit = self._begin + self.size
        offset += self._begin
        view = memoryview(self._buffer)
        while offset < end:
            if self._interrupted():
                raise Interrupted
            want = min(CHUNK_BYTES, end - offset, limit - offset)
            if want <= 0:
                raise Short
            if self._throttle is not None:
                self._throttle.take(want)
            got = os.preadv(self._fd, [view[:want]], offset)
            if got == 0:
                raise Short
            offset += got
            self._undropped += got
            yield view[:got]
            if self._undropped >= DROP_EVERY_BYTES:
                self._drop()

    def _drop(self) -> None:
        if self._drop_cache:
            # pages that somebody has mapped, or that are still dirty, stay: the kernel sees to that
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self._undropped = 0
