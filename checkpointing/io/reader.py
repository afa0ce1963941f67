"""Reads a file that may be torn, huge, hung or no file at all, without harm to others.

`FileReader` reads in pieces of at most `CHUNK_BYTES`, never faster than its throttle allows. If asked to, it drops the pages from the page
cache that were not in it before: what a rank has just written stays there, because a restart reads it. It never opens a FIFO or a device: a
reader on a FIFO would let its writer continue and then kill it with SIGPIPE. One reader belongs to one thread.
"""

from __future__ import annotations

import copy
import os
import stat
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol, Self

from checkpointing.io.page_cache import resident_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK_BYTES: Final = 1 << 20  # of any stream: few calls, and little memory for each of the threads
#: Bytes dropped from the page cache at once: so many of other programs' may be displaced. No folio is larger.
BLOCK_BYTES: Final = 8 << 20
_BLOCKS_AHEAD: Final = 5  # the kernel reads 16 MiB ahead at most on the file systems that we know (Lustre, NFS over fast links)
_RESIDENT: Final = 0.5  # a block of which more is in the page cache stays there
UNLIMITED: Final = 1e18  # no disk gives that; finite, since no time at all may pass between two calls
#: This share of a background read's time passes before the next read: the rate follows the disk, and leaves a tenth of it to the job.
_REST: Final = 0.1
_LONGEST_REST_S: Final = 1.0  # a read of a chunk that took longer was held up by something else
_YIELD_BYTES: Final = 32 << 20  # between two looks whether the job saves: a smaller checkpoint is read at once, which no save notices
_YIELD_LOOK_S: Final = 0.2
MOST_YIELD_S: Final = 600.0  # a job that saves without an end must not keep its checkpoints from being verified


class Interrupted(Exception):  # noqa: N818 -- not an error: the caller asked for it
    """Reading was given up because the caller asked for it."""


class Short(Exception):  # noqa: N818 -- a fact about the file, not a program error
    """The file ended before the bytes that were asked for."""


class NotRegular(Exception):  # noqa: N818 -- a fact about the path, not a program error
    """The path is not a regular file. `what` names its real kind."""

    def __init__(self, subject: str) -> None:
        """Keep its kind."""
        super().__init__(subject)
        self.what = subject


class Throttle:
    """A token bucket of bytes. Thread-safe: several readers of one node may share it.

    `clock` gives monotonic seconds and `wait` sleeps for seconds; both are injected so that a test needs no time and a watcher can
    wait on its stop event. `burst_bytes` may be taken at once after a pause. `taken` gets the bytes of each call, for a progress bar.
    """

    def __init__(
        self,
        rate_bytes_per_s: float,
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


class BackgroundThrottle(Throttle):
    """Lets one thread read as fast as the disk gives, below a cap, and not while the job itself saves or loads.

    After each read it pauses for a share of the time that the read took. So a slow or busy disk is read slowly. `is_busy`: whether the job
    saves or loads now; the reader waits for its end, `MOST_YIELD_S` at most, and then for the next one again.
    """

    def __init__(
        self,
        cap_bytes_per_s: float = UNLIMITED,
        *,
        is_busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """Begin with a full bucket. `wait` returns a true value to end every wait: the reader is stopped."""
        super().__init__(cap_bytes_per_s, clock=clock, wait=wait)
        self._is_busy, self._is_lifted = is_busy, False
        self._since_yield_bytes = 0
        self._yielded_s = 0.0  # of the save or load that is under way
        self._begun: float | None = None  # when the read before this call began

    def take(self, n_bytes: int) -> None:
        """Wait until the next `n_bytes` may be read."""
        if self._begun is not None and not self._is_lifted:
            rest_s = _REST * min(_LONGEST_REST_S, self._clock() - self._begun)
            if rest_s > 0:
                self._wait(rest_s)
        self._since_yield_bytes += n_bytes
        if self._since_yield_bytes > _YIELD_BYTES:
            self._yield()
        super().take(n_bytes)
        self._begun = self._clock()

    def lift(self) -> None:
        """Let everything through from now on, and wait for nobody."""
        self._is_lifted = True
        super().lift()

    def _yield(self) -> None:
        self._since_yield_bytes = 0
        while not self._is_lifted and self._is_busy():
            if self._yielded_s >= MOST_YIELD_S or self._wait(_YIELD_LOOK_S):
                return
            self._yielded_s += _YIELD_LOOK_S
        self._yielded_s = 0.0


class Follower(Protocol):
    """Gets the bytes of one file in their order, each once, from the reads of its examiner."""

    @property
    def n_bytes(self) -> int:
        """How many it has had."""

    def update(self, piece: memoryview) -> None:
        """Add the next bytes."""


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
        follower: Follower | None = None,
    ) -> None:
        """Open `path`. Raises NotRegular, or OSError where it cannot be opened. `follower` gets what `bulk` reads."""
        self.follower = follower
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
        self._resident: dict[int, bool] = {}  # by the number of a block, as it was before it was read
        self._undropped: list[int] = []  # blocks to be dropped

    def __enter__(self) -> Self:
        """Return the source itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Return the descriptor back, and the page cache where asked."""
        self._drop()
        os.close(self._fd)

    def stat_now(self) -> os.stat_result:
        """Stat the open file again."""
        return os.fstat(self._fd)

    def window(self, offset: int, length: int) -> FileReader:
        """Return a part of the file as if it were a file of its own. It borrows the descriptor: it is not closed, nor outlives this."""
        window = copy.copy(self)
        window._begin = self._begin + offset  # noqa: SLF001 -- one of our own kind
        window.size = max(0, min(length, self.size - offset))
        return window

    def read(self, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes at `offset`; the caller bounds `length`. Raises Short, Interrupted, OSError."""
        return b"".join(bytes(piece) for piece in self.stream(offset, length))

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        """Yield the bytes from `offset` on in pieces. A piece is valid until the next is asked for. Raises Short, Interrupted, OSError."""
        return self._pieces(self._begin + offset, self._begin + offset + length, self._begin + self.size)

    def bulk(self, offset: int, length: int) -> Iterator[memoryview]:
        """Yield as `stream` does, for bytes that are read once, in the order of the file: the follower gets them, and the bytes before.

        So an examination of a file from its beginning to its end also computes its digest, and nothing is read twice.
        """
        begin, follower = self._begin + offset, self.follower
        if follower is None:
            yield from self.stream(offset, length)
            return
        for piece in self._pieces(follower.n_bytes, begin, begin):
            follower.update(piece)
        for piece in self.stream(offset, length):
            if (known := follower.n_bytes - begin) < len(piece):
                follower.update(piece[max(0, known) :])
            begin += len(piece)
            yield piece

    def _pieces(self, at: int, end: int, limit: int) -> Iterator[memoryview]:
        """Yield the bytes of the file from `at` to `end`; `limit`: where the window ends."""
        view = memoryview(self._buffer)
        while at < end:
            if self._interrupted():
                raise Interrupted
            want = min(CHUNK_BYTES, end - at, limit - at)
            if want <= 0:
                raise Short
            if self._throttle is not None:
                self._throttle.take(want)
            block = at // BLOCK_BYTES
            is_ours = self._drop_cache and not self._was_resident(block)
            n_read = os.preadv(self._fd, [view[:want]], at)
            if n_read == 0:
                raise Short
            if is_ours and block not in self._undropped:
                self._drop()
                self._undropped.append(block)
            at += n_read
            yield view[:n_read]

    def _was_resident(self, block: int) -> bool:
        """Return whether a block was in the page cache before this reader came near it.

        The blocks after it are asked for as well, before the kernel reads ahead into them.
        """
        for number in range(block, block + _BLOCKS_AHEAD):
            if number not in self._resident:
                self._resident[number] = self._is_resident(number)
        return self._resident[block]

    def _is_resident(self, block: int) -> bool:
        begin = block * BLOCK_BYTES
        n_bytes = min(BLOCK_BYTES, self.stat_opened.st_size - begin)
        return n_bytes > 0 and resident_share(self._fd, begin, n_bytes) > _RESIDENT

    def _drop(self) -> None:
        # pages that somebody has mapped, or that are still dirty, stay: the kernel sees to that
        for block in self._undropped:
            # whole blocks: of a range within them the kernel drops only the folios that lie in it
            os.posix_fadvise(self._fd, block * BLOCK_BYTES, BLOCK_BYTES, os.POSIX_FADV_DONTNEED)
        self._undropped.clear()
