"""Finds signatures in what the ranks write, while they write it, in the files that the guardian keeps.

A disk that does not answer delays this thread alone; its callers have a deadline. A file that cannot be read is reported as a problem.

Files are read every PAUSE_S, and at once when a rank has died. Not inotify: it would wake us for every write of a chatty job, where one
read gathers all of them into one block, and it reports nothing of files on other machines. Sixteen quiet files cost sixteen stats, some
30 us. A read is followed by a pause of four times its length, so that no flood takes more than a fifth of one processor.

If more than one pass's share of a file (`most`, at most FILE_BYTES) is unread, half a share is read at its beginning and half at its end.
The middle is skipped and counted. If the time is up before the first half is read, the rest waits for the next pass, unless the
file is more than BEHIND shares behind. On the last pass nothing waits.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
from typing import TYPE_CHECKING

from supervisor.classify.logs.match import Reader
from supervisor.core.model import Evidence
from supervisor.core.values import Struct
from supervisor.guardian.logs import KEPT
from supervisor.observe.ranks import nccl_logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.classify.logs.catalogue import Catalogue
    from supervisor.classify.logs.scanner import Scanner
    from supervisor.observe.loss_watch import LossStream

    Signatures = Callable[[], tuple[Catalogue, Scanner]]

PAUSE_S = 0.5
PAUSE_PER_PASS = 4
#: Once in so many passes, half a minute and more, the logs of a traced attempt give disk back.
BOUND_PASSES = 60
BLOCK_BYTES = 128 * 1024
LEAST_BLOCK_BYTES = 8 * 1024
BLOCK_S = 0.004
#: The most bytes that one pass reads of one file, and of all files together. Each file gets at least LEAST_BYTES. These are the limits
#: if the signatures match few lines.
FILE_BYTES = 4 << 20
PASS_BYTES = 16 << 20
LEAST_BYTES = 128 * 1024
#: If more than this many shares of a file are unread when the time is up, its middle is skipped instead of waiting for the next pass.
BEHIND = 4
#: The longest time of a pass, and of the last pass, for which the verdict waits: the limits if the signatures match nearly every line.
PASS_S = 0.25
LAST_S = 0.04
#: The end of each stream is read in any case: the error that killed a rank is there.
LAST_BYTES = 8 * 1024
#: The kernel notes the time of a write as of its last tick, 1 to 10 ms ago. A rank's lines about another one's death must not precede it.
FILE_TICK_S = 0.01
#: A file server's facts of a file may be so old (nfs(5): acregmin).
SEEN_LATE_S = 3.0
#: The bytes kept of each stream's end, to see whether the file has all that was written.
END_BYTES = 4096

_NAMES = re.compile(r"(?:rank-(?P<rank>\d{1,6})|agent)\.(?P<kind>out|err|log)")
#: The guardian's word for both streams in one.
_STREAMS = {"out": "out", "err": "err", "log": "both"}
AGENT = -1


class StreamRead(Struct, frozen=True):
    """The text that was read of one stream. `name`: out, err or both; rank -1: the agent.

    `skipped`: bytes that nobody read. `gaps`: how often files of any size may have been rotated away between two passes.
    """

    rank: int
    name: str
    evidence: tuple[Evidence, ...]
    end: bytes
    skipped: int
    problem: str
    gaps: int = 0


class LogWatch:
    """Reads the logs of one attempt, in a thread of its own."""

    def __init__(
        self, directory: Path, signatures: Signatures, now: Callable[[], float], numbers: Callable[[int], LossStream | None] | None = None
    ) -> None:
        """Take the attempt's log directory, which need not be there yet. `now` is the job's clock.

        numbers: makes what watches the numbers of a rank's stream.
        """
        self._directory = directory
        self._numbers = numbers
        self._signatures = signatures
        self._now = now
        self._streams: dict[str, _WatchedStream] = {}
        self._wake = threading.Event()
        self._over = threading.Event()
        self._answered = threading.Event()
        self._answer: tuple[StreamRead, ...] = ()
        self._failure: Exception | None = None
        self._found_at = 0.0  # when the directory was last listed, by the monotonic clock
        self.passes = 0

    @property
    def bytes_passed(self) -> int:
        """How many bytes of all files are done with: those read and those skipped."""
        return sum(stream.bytes_passed for stream in tuple(self._streams.values()))

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if none can be started."""
        threading.Thread(target=self._run, name="logs", daemon=True).start()

    def read_now(self) -> None:
        """Read now: a rank died."""
        self._wake.set()

    def stop(self) -> None:
        """Have the thread make its last pass and end. This does not wait for it."""
        self._over.set()
        self._wake.set()

    def finish(self, deadline_s: float) -> tuple[StreamRead, ...]:
        """Read the rest, and return all evidence. Raises TimeoutError, or the error that kept it from reading."""
        self.stop()
        if not self._answered.wait(deadline_s):
            message = "the logs could not be read in time"
            raise TimeoutError(message)
        if self._failure is not None:
            raise self._failure
        return self._answer

    def _run(self) -> None:
        try:
            self._signatures()  # made now, while the ranks start, and not when the first of them has died
            while not self._over.is_set():
                began = time.monotonic()
                self._pass(_TimeSlice(began + PASS_S, self._over))
                took = time.monotonic() - began
                self._wake.wait(max(PAUSE_S, PAUSE_PER_PASS * took))
                self._wake.clear()
            self._pass(_TimeSlice(time.monotonic() + LAST_S))
            self._answer = tuple(stream.finish(self._now()) for stream in self._streams.values())
        except Exception as error:  # noqa: BLE001 (`finish` raises it; a thread that dies in silence would be waited for)
            self._failure = error
        finally:
            for stream in self._streams.values():
                stream.close()
            self._answered.set()

    def _pass(self, turn: _TimeSlice) -> None:
        self._find()
        if self.passes % BOUND_PASSES == 0:
            nccl_logs.bound(self._directory)
        most = max(LEAST_BYTES, min(FILE_BYTES, PASS_BYTES // max(1, len(self._streams))))
        streams = list(self._streams.values())
        first = self.passes % max(1, len(streams))  # another one each time: where time is short it does not suffice for all
        for stream in (*streams[first:], *streams[:first]):
            stream.read(most, self._now(), turn)
        self.passes += 1

    def _find(self) -> None:
        try:
            names = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:  # the guardian makes it with the first file
            names = []
        except OSError:  # the disk is not well: the guardian keeps the last lines
            return
        for name in names:
            match = _NAMES.fullmatch(name)
            if match is None or name in self._streams:
                continue
            rank = int(match["rank"]) if match["rank"] else AGENT
            reader = Reader(*self._signatures())
            numbers = self._numbers(rank) if self._numbers is not None else None
            path = str(self._directory / name)
            self._streams[name] = _WatchedStream(path, rank, _STREAMS[match["kind"]], reader, numbers, all_read_at=self._found_at)
        self._found_at = time.monotonic()


class _TimeSlice(Struct, frozen=True):
    """How long a pass may take. The last one has no `over`: no other pass follows."""

    until: float
    over: threading.Event | None = None

    @property
    def last(self) -> bool:
        return self.over is None

    @property
    def up(self) -> bool:
        return time.monotonic() >= self.until or (self.over is not None and self.over.is_set())


class _WatchedStream:
    """One stream: a file, and those that took its name before and after. all_read_at: when nothing of it was unread, monotonic, or 0."""

    def __init__(  # noqa: PLR0913  its sources and its readers
        self, path: str, rank: int, name: str, reader: Reader, numbers: LossStream | None = None, *, all_read_at: float = 0.0
    ) -> None:
        self._path, self._rank, self._name, self._reader = path, rank, name, reader
        self._numbers = numbers
        self._fd = -1
        self._inode = 0
        self._at = 0
        self._block = LEAST_BLOCK_BYTES
        self._t = 0.0
        self._all_read_at = all_read_at
        self._cut = False
        self._end = b""
        self._skipped = 0
        self._gaps = 0
        self._problem = ""
        self.bytes_passed = 0

    def read(self, most: int, now: float, turn: _TimeSlice) -> None:
        """Take in the new output, `most` bytes of a file, until the turn is up."""
        try:
            if self._fd < 0:
                self._open_oldest()
            for _ in range(2 * KEPT):  # the file in reading, all that are kept, and those rotated meanwhile
                rotated = _inode(self._path) not in {0, self._inode}  # asked first: a file that has lost its name grows no more
                self._take(most, now, turn)
                if not rotated or self._at < os.fstat(self._fd).st_size:
                    break
                self._open_follower()
            self._problem = ""
        except OSError as error:
            self._problem = f"{error.strerror}: {os.path.basename(self._path)}"  # noqa: PTH119 (a name out of a text)

    def finish(self, now: float) -> StreamRead:
        """Return the evidence, now that the stream has ended."""
        facts = self._reader.finish(self._t or now)
        return StreamRead(self._rank, self._name, facts, self._end, self._skipped, self._problem, self._gaps)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _take(self, most: int, now: float, turn: _TimeSlice) -> None:
        info = os.fstat(self._fd)
        if info.st_size < self._at:  # somebody emptied it
            self._at = 0
            self._mark_gap()
        if info.st_size > self._at:
            # its last byte was written so long ago, by the clock of the file system; which is wrong if that is before the last pass
            age_s = max(0.0, time.time() - info.st_mtime - FILE_TICK_S)
            is_wrong = age_s > time.monotonic() - self._all_read_at + SEEN_LATE_S
            self._t = max(self._t, now if is_wrong else now - age_s)
        if info.st_size - self._at > most:
            beginning = self._at + most // 2
            self._feed(beginning, turn)
            behind = info.st_size - self._at > BEHIND * most
            if self._at < beginning and not turn.last and not (behind and time.monotonic() >= turn.until):
                return  # the rest is for the next pass
            self._skip_to(info.st_size - most // 2)
        self._feed(info.st_size, turn)
        if turn.last and self._at < info.st_size:
            self._skip_to(max(self._at, info.st_size - LAST_BYTES))
            self._feed(info.st_size, None)
        if self._at >= info.st_size:
            self._all_read_at = time.monotonic()

    def _feed(self, upto: int, turn: _TimeSlice | None) -> None:
        """Read up to `upto`. Stop when the turn is up.

        The block doubles (to BLOCK_BYTES) while one takes at most BLOCK_S, and falls to LEAST_BLOCK_BYTES when one takes longer.
        """
        while self._at < upto and not (turn is not None and turn.up):
            began = time.monotonic()
            block = os.pread(self._fd, min(upto - self._at, self._block), self._at)
            if not block:
                return
            self._at += len(block)
            self.bytes_passed += len(block)
            self._end = (self._end + block)[-END_BYTES:]
            if self._cut:  # in the middle of a line: the rest of the line means something else than all of it
                newline = block.find(b"\n")
                if newline < 0:
                    continue
                self._cut, block = False, block[newline + 1 :]
            self._reader.feed(block, self._t)
            if self._numbers is not None:
                self._numbers.feed(block, self._t)
            slow = time.monotonic() - began > BLOCK_S
            self._block = LEAST_BLOCK_BYTES if slow else min(2 * self._block, BLOCK_BYTES)

    def _skip_to(self, at: int) -> None:
        if at > self._at:
            self._skipped += at - self._at
            self.bytes_passed += at - self._at
            self._at = at
            self._mark_gap()

    def _mark_gap(self) -> None:
        """Mark a gap in the input: end the line that was begun, and drop what comes up to the next newline."""
        self._reader.feed(b"\n", self._t)
        if self._numbers is not None:
            self._numbers.feed(b"\n", self._t)
        self._cut = True

    def _open_oldest(self) -> None:
        numbers = [n for n in range(KEPT - 1, 0, -1) if os.path.exists(f"{self._path}.{n}")]  # noqa: PTH110 (no object per pass)
        self._open(f"{self._path}.{numbers[0]}" if numbers else self._path)

    def _open_follower(self) -> None:
        """Continue with the next file, which is called NAME.n by now."""
        open_inode = self._inode
        for _ in range(KEPT):
            number = next((n for n in range(1, KEPT) if _inode(f"{self._path}.{n}") == open_inode), None)
            if number is None:
                break
            self._open(f"{self._path}.{number - 1}" if number > 1 else self._path)
            if _inode(f"{self._path}.{number}") == open_inode:  # else it was rotated again in between, and this may be the one after
                return
        self._gaps += 1
        self._mark_gap()  # this file is not kept any longer, and later ones may be gone too
        self._open_oldest()

    def _open(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            os.close(fd)
            raise OSError(0, "not a regular file", path)
        self.close()
        self._fd, self._inode, self._at = fd, info.st_ino, 0


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino  # noqa: PTH116 (no object per pass)
    except FileNotFoundError:
        return 0
