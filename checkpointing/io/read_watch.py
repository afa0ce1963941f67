"""Follows reads that may take hours, or never end: it reports how far a read is, and leaves one from which no byte comes.

A read has no limit of time. A disk that gives no byte for `STALL_S` (0 B/s, a dead NFS server) ends it: `DiskSilent`. Nobody can
interrupt such a read (proc(5): state D), so each read runs in a thread of its own, and that thread is left. If a byte comes after all,
the thread ends there, and its bytes count for nothing. Until then its path is not read again, what else lies on its device gets
`AGAIN_S` for each next byte, and after `MOST_LEFT` left threads nothing on that device is tried. A process that ends with a thread in
state D has released its locks and printed its last line by then, but the kernel lists it until the disk answers.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from checkpointing.io.background_call import BackgroundCall
from checkpointing.io.progress_text import progress_text
from checkpointing.io.reader import UNLIMITED, Interrupted, Throttle, never
from checkpointing.io.tree import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Callable

#: So long no byte may come.
STALL_S: Final = 120.0
#: The same for what lies on a device of which a read was left.
AGAIN_S: Final = 10.0
#: After so many left threads nothing on their device is tried.
MOST_LEFT: Final = 8
#: The first line of a read, and the time between two lines: in the first minute, and later.
FIRST_LINE_S: Final = 5.0
LINES_S: Final = 10.0
LATER_LINES_S: Final = 60.0
#: So long without a byte is worth a warning.
SILENT_LINE_S: Final = 30.0
_LOOK_S: Final = 0.5
_NO_DEVICE: Final = -1

T = TypeVar("T")


class DiskSilent(OSError):  # noqa: N818 -- a fact about the disk
    """No byte came for too long. `str` is the reason, without the path."""


@dataclass(slots=True)
class _Read:
    """One read in its thread. `n_read`: bytes asked for so far."""

    path: str
    device: int
    began_t: float
    n_read: int = 0
    n_turns: int = 0  # how often its thread got a processor
    thread: int = 0
    is_left: bool = False
    silent_since_t: float = 0.0
    background: BackgroundCall[Any] = field(init=False)

    def count(self, n_bytes: int) -> None:
        self.n_read += n_bytes


def _print_nothing(_level: str, _text: str) -> None:
    """Report to nobody."""


class ReadWatch:
    """Follows the reads of one process. Several threads may use it; each waits for its own read.

    report: gets (level, line) for people, from the thread that waits. moved: is called there while bytes come. stall_s: so long no byte may
    come; again_s: the same for what lies on a device of which a read was left. is_wanted: whether anybody still waits for the reads; if
    not, they end with Interrupted. clock: monotonic seconds. wait: waits for an event for some seconds.
    """

    def __init__(  # noqa: PLR0913 -- keywords, each with a default
        self,
        *,
        report: Callable[[str, str], object] = _print_nothing,
        moved: Callable[[], object] = lambda: None,
        stall_s: float = STALL_S,
        again_s: float = AGAIN_S,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        """Follow nothing yet."""
        self._report, self._moved, self._stall_s, self._again_s, self._clock, self._wait = report, moved, stall_s, again_s, clock, wait
        self.is_wanted: Callable[[], bool] = lambda: True
        self.n_moves = 0  # grows while bytes come
        self._lock = threading.Lock()
        self._left: list[_Read] = []

    def note_move(self) -> None:
        """Note that the awaited work continues."""
        self.n_moves += 1
        self._moved()

    def read(  # noqa: PLR0913 -- the bytes, the reader, the way
        self,
        path: str,
        work: Callable[[ReadOptions], T],
        *,
        device: int = _NO_DEVICE,
        n_bytes: int = 0,
        why: str = "",
        reading: ReadOptions = ReadOptions(),  # noqa: B008 -- a frozen value
    ) -> T:
        """Return or raise what `work` does with the options that it gets. Raises DiskSilent; Interrupted if nobody waits for it any more.

        n_bytes: how many will be read about, for the lines. why: for people, why all of it is read.
        """

        def call(read: _Read) -> T:
            def taken(n: int) -> None:
                if reading.throttle is not None:
                    reading.throttle.take(n)
                read.count(n)

            throttle = Throttle(UNLIMITED, taken=taken)
            return work(ReadOptions(throttle, reading.drop_cache, lambda: read.is_left or reading.interrupted() or not self.is_wanted()))

        return self._follow(path, call, device, n_bytes, why, reading.interrupted)

    def call(self, places: str, work: Callable[[], T]) -> T:
        """Return or raise what `work` does, which reads names and no content: it continues while its thread gets a processor now and then.

        places: where it reads, for the lines. Raises DiskSilent; Interrupted if nobody waits for it any more.
        """
        return self._follow(places, lambda _read: work(), _NO_DEVICE, 0, "", never, is_listing=True)

    def _follow(  # noqa: PLR0913, PLR0917 -- as `read`
        self,
        path: str,
        call: Callable[[_Read], T],
        device: int,
        n_bytes: int,
        why: str,
        interrupted: Callable[[], bool],
        *,
        is_listing: bool = False,
    ) -> T:
        stall_s = self._allowed_s(path, device)
        read = _Read(path, device, self._clock())

        def run() -> T:
            read.thread = threading.get_native_id()
            return call(read)

        read.background = background = BackgroundCall(run, "read")
        self._await(read, stall_s, n_bytes, why, interrupted, is_listing=is_listing)
        return background.result()

    def _allowed_s(self, path: str, device: int) -> float:
        """Return for how long no byte may come. Raises DiskSilent where that is known before."""
        with self._lock:
            self._left = [read for read in self._left if not read.background.done.is_set()]
            left = list(self._left)
        now = self._clock()
        for read in left:
            if read.path == path:
                raise DiskSilent(f"no byte has come for {now - read.silent_since_t:.0f} s: its disk does not answer")
        beside = [read for read in left if read.device == device != _NO_DEVICE]
        if len(beside) >= MOST_LEFT:
            raise DiskSilent("not read: its disk does not answer")
        return min(self._again_s, self._stall_s) if beside else self._stall_s

    def _await(  # noqa: PLR0913 -- as `read`
        self, read: _Read, stall_s: float, n_bytes: int, why: str, interrupted: Callable[[], bool], *, is_listing: bool
    ) -> None:
        before, silent_s, n_seen, seen_turns = read.began_t, 0.0, 0, 0
        next_line_s, next_silent_s = FIRST_LINE_S, SILENT_LINE_S
        look_s = min(_LOOK_S, stall_s / 4)
        while not self._wait(read.background.done, look_s):
            now = self._clock()
            silent_s += min(now - before, 4 * look_s)  # a process that was stopped for a while saw no disk then
            before = now
            turns = _turns(read.thread) if is_listing else 0
            if read.n_read > n_seen or turns > seen_turns:
                n_seen, seen_turns, silent_s, next_silent_s = read.n_read, turns, 0.0, SILENT_LINE_S
                self.note_move()
            if interrupted() or not self.is_wanted():
                self._leave(read, silent_s)
                raise Interrupted
            if silent_s >= stall_s:
                self._leave(read, silent_s)
                raise DiskSilent(f"no byte came for {silent_s:.0f} s: its disk does not answer")
            lasted_s = now - read.began_t
            if silent_s >= next_silent_s:
                next_silent_s += SILENT_LINE_S
                left = f"it is passed over after {stall_s:.0f} s"
                self._report("warning", f"no byte for {silent_s:.0f} s from {read.path} ({left})")
            elif n_bytes and lasted_s >= next_line_s and not silent_s:
                next_line_s = lasted_s + (LINES_S if lasted_s < LATER_LINES_S else LATER_LINES_S)
                how_far = progress_text(min(read.n_read, n_bytes), n_bytes, read.n_read / lasted_s)
                self._report("info", f"reading {read.path}{f' ({why})' if why else ''}: {how_far}")

    def _leave(self, read: _Read, silent_s: float) -> None:
        """Leave a read. Only where no byte came for a while is its disk to blame: the next selection reads the others again."""
        read.is_left, read.silent_since_t = True, self._clock() - silent_s
        if silent_s >= min(self._again_s, self._stall_s):
            with self._lock:
                self._left.append(read)


def _turns(thread: int) -> int:
    """Return how often a thread of this process got a processor (proc(5), `status`): one that waits for a dead server never does."""
    try:
        text = Path(f"/proc/self/task/{thread}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line)
