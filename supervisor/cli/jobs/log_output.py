"""Prints the files of an attempt's ranks, whole or in part, and follows them.

Bytes go through untouched, but for the times that stand before the lines where they are wanted. Where several ranks are shown, a line with
the file's name is before each. Following checks for growth a few times a second, through rotations and from one attempt to the next,
and ends when the job does.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING

from supervisor.cli import stdio
from supervisor.cli.jobs.log_files import TimeIndex, attempts, earlier_runs, of_run, streams
from supervisor.core.values import Struct, replace
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job.local_time import second_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

POLL_S = 0.2
#: While nothing grows, the number of polls between two checks for the end of the job.
_END_POLLS = 10
_CHUNK_BYTES = 1 << 16


class LogSelection(Struct, frozen=True):
    """The choice of lines to print: of one rank or of all; the last `lines` of each file; those written at `since` (Unix seconds) or later.

    times: the time at which a line was begun is before it. later_attempts: following continues with the next attempt.
    """

    rank: int | None = None
    lines: int | None = None
    since: float | None = None
    times: bool = False
    follow: bool = False
    later_attempts: bool = False


class _Stream:
    """One growing stream: the part that is being printed, and how far. Its descriptors stay with the part when that is renamed."""

    def __init__(self, current: Path, file: Path, *, at: int = 0, times: bool) -> None:
        self.current = current
        self.at_line_start = True
        self._times = times
        self.fd, self.index = self._open(file)
        self.inode = os.fstat(self.fd).st_ino
        os.lseek(self.fd, at, os.SEEK_SET)

    def _open(self, file: Path) -> tuple[int, TimeIndex | None]:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        return fd, TimeIndex(file) if self._times else None

    def turn_to(self, file: Path, at: int = 0) -> None:
        """Continue with another part."""
        fd, index = self._open(file)
        self.close()
        self.fd, self.index, self.inode = fd, index, os.fstat(fd).st_ino
        os.lseek(fd, at, os.SEEK_SET)

    def close(self) -> None:
        """Close the part."""
        os.close(self.fd)
        if self.index is not None:
            self.index.close()

    @property
    def grew(self) -> bool:
        """Whether there are bytes that were not printed."""
        return os.lseek(self.fd, 0, os.SEEK_CUR) < os.fstat(self.fd).st_size

    @property
    def rotated(self) -> bool:
        """Whether the stream has a newer part than this one."""
        try:
            return self.current.stat().st_ino != self.inode
        except FileNotFoundError:
            return False

    def print_rest(self) -> None:
        """Print the part from the present place on."""
        out = sys.stdout.buffer
        at = os.lseek(self.fd, 0, os.SEEK_CUR)
        while data := os.read(self.fd, _CHUNK_BYTES):
            out.write(data if self.index is None else self._stamped(data, at, self.index))
            at += len(data)
        out.flush()

    def _stamped(self, data: bytes, at: int, index: TimeIndex) -> bytes:
        index.read_more()
        pieces: list[bytes] = []
        start = 0
        while start < len(data):
            if self.at_line_start:
                pieces.append(_stamp(index.time_at(at + start)))
            end = data.find(b"\n", start) + 1
            self.at_line_start = end > 0
            end = end or len(data)
            pieces.append(data[start:end])
            start = end
        return b"".join(pieces)


def show(  # noqa: PLR0913 (where, what, and how)
    directory: Path, job: str, attempt: int, selection: LogSelection, *, goes_on: Callable[[], bool], run: str = ""
) -> int:
    """Print the files of an attempt, of an earlier `run` where one is named. `goes_on` returns whether more can come.

    Returns 0; raises SuperviseError (64), and OSError of stdout.
    """
    place = of_run(directory, run) / f"{attempt:04d}"
    rank = selection.rank
    files = streams(place, rank)
    if not files and rank is not None and streams(place, None):
        stdio.say(f"rank {rank} wrote nothing in attempt {attempt}")
    elif not files and not (selection.follow and goes_on()):
        raise _no_output(directory, job, attempt, rank, run)
    _show(place, files, selection, goes_on)
    while selection.later_attempts and (later := _after(directory, attempt)):
        attempt, place = later, of_run(directory, run) / f"{later:04d}"
        sys.stdout.buffer.write(f"==> attempt {attempt} <==\n".encode())
        _show(place, streams(place, rank), replace(selection, lines=None, since=None), goes_on)
    return 0


def _after(directory: Path, attempt: int) -> int | None:
    """Return the next attempt with output."""
    return next((number for number in attempts(directory) if number > attempt), None)


def _no_output(directory: Path, job: str, attempt: int, rank: int | None, run: str) -> SuperviseError:
    there = ", ".join(map(str, attempts(directory, run)))
    hint = f"Attempts with output: {there}; name one with --attempt." if there else "Nothing was captured."
    older = [] if run else [name for name in earlier_runs(directory) if attempt in attempts(directory, name)]
    if older:
        hint += f" Attempt {attempt} of an earlier run: --run {', or '.join(older)}."
    whose = "" if rank is None else f", rank {rank}"
    return SuperviseError(f"no output: job {job}: attempt {attempt}{whose}", hint=hint, exit_code=ExitCode.USAGE)


def _show(place: Path, files: Sequence[tuple[Path, list[Path]]], selection: LogSelection, goes_on: Callable[[], bool]) -> None:
    followed: dict[Path, _Stream] = {}
    try:
        for current, parts in files:
            stream = _print_parts(current, parts, selection, several=len(files) > 1)
            if stream is not None:
                followed[current] = stream
        if selection.follow:
            directory, attempt = place.parent.parent, int(place.name)

            def over() -> bool:
                return not goes_on() or (selection.later_attempts and _after(directory, attempt) is not None)

            _follow(place, selection, followed, over)
    finally:
        for stream in followed.values():
            stream.close()


def _print_parts(current: Path, parts: Sequence[Path], selection: LogSelection, *, several: bool) -> _Stream | None:
    """Print the selected lines of one stream. Returns it, at its end; None if it vanished."""
    stream: _Stream | None = None
    titled = not several
    for file, at in _starts(parts, selection):
        with contextlib.suppress(FileNotFoundError):
            if stream is None:
                stream = _Stream(current, file, at=at, times=selection.times)
            else:
                stream.turn_to(file, at)
            if stream.grew and not titled:
                _title(current)
                titled = True
            stream.print_rest()
    return stream


def _starts(parts: Sequence[Path], selection: LogSelection) -> list[tuple[Path, int]]:
    """Return each part, and where in it the selected bytes begin: at its end where none is selected."""
    starts: list[tuple[Path, int]] = []
    for file in parts:
        with contextlib.suppress(FileNotFoundError):
            starts.append((file, 0 if selection.since is None else _offset_since(file, selection.since)))
    if selection.lines is None:
        return starts
    wanted = selection.lines
    last: list[tuple[Path, int]] = []
    for file, start in reversed(starts):
        with contextlib.suppress(FileNotFoundError):
            at, count = _last_lines(file, start, wanted)
            wanted -= count
            last.append((file, at))
    return last[::-1]


def _offset_since(file: Path, since: float) -> int:
    index = TimeIndex(file)
    try:
        status = file.stat()
        if index.is_empty and status.st_size and status.st_mtime >= since:
            stdio.say(f"{file.parent.name}/{file.name}: no times were noted, so all of it is printed")
            return 0
        at = index.offset_since(since)
        return status.st_size if at is None else at
    finally:
        index.close()


def _last_lines(path: Path, start: int, wanted: int) -> tuple[int, int]:
    """Return where the last `wanted` lines after `start` begin, and how many there are."""
    with path.open("rb") as file:
        end = at = file.seek(0, os.SEEK_END)
        if end <= start or not wanted:
            return end, 0
        count, newest = 0, True
        while at > start:
            size = min(_CHUNK_BYTES, at - start)
            at = file.seek(at - size)
            block = file.read(size)
            cut = len(block)
            if newest:  # the end of the last line begins none
                cut -= block.endswith(b"\n")
                newest = False
            while count < wanted and (cut := block.rfind(b"\n", 0, cut)) >= 0:
                count += 1
                if count == wanted:
                    return at + cut + 1, wanted
    return start, count + 1


def _follow(place: Path, selection: LogSelection, followed: dict[Path, _Stream], over: Callable[[], bool]) -> None:
    never = threading.Event()
    quiet, last = 0, None
    is_over = False
    while True:
        grown = False
        for current, parts in streams(place, selection.rank):
            stream = followed.get(current)
            is_new = stream is None
            if stream is None and parts:
                with contextlib.suppress(FileNotFoundError):
                    stream = followed[current] = _Stream(current, parts[0], times=selection.times)
            if stream is None:
                continue
            last, printed = _print_growth(stream, parts, last, several=len(followed) > 1)
            grown = grown or printed or is_new
        if is_over and not grown:
            return
        quiet = 0 if grown else quiet + 1
        if quiet >= _END_POLLS:
            quiet, is_over = 0, over()
        never.wait(POLL_S)


def _print_growth(stream: _Stream, parts: Sequence[Path], last: Path | None, *, several: bool) -> tuple[Path | None, bool]:
    """Print what a stream has grown by, through a rotation too. Returns the stream that was printed last, and whether it grew."""
    printed = False
    while stream.grew or stream.rotated:
        if last != stream.current:
            if several:
                _title(stream.current)
            last = stream.current
        stream.print_rest()
        printed = True
        if not stream.rotated:
            break
        stream.turn_to(_part_after(stream, parts))
    return last, printed


def _part_after(stream: _Stream, parts: Sequence[Path]) -> Path:
    """Return the part that was begun after this one."""
    inodes = []
    for path in parts:
        with contextlib.suppress(FileNotFoundError):
            inodes.append((path.stat().st_ino, path))
    at = next((i for i, (inode, _) in enumerate(inodes) if inode == stream.inode), None)
    return inodes[at + 1][1] if at is not None and at + 1 < len(inodes) else stream.current


def _title(path: Path) -> None:
    sys.stdout.buffer.write(f"==> {path.parent.name}/{path.name} <==\n".encode())


def _stamp(at: float | None) -> bytes:
    """Return a time of today, or with its date, as it is before a line; blanks where it is not known."""
    return b" " * len("00:00:00 ") if at is None else _clock(int(at), int(time.time()) // 60)


@lru_cache(maxsize=64)
def _clock(second: int, minute_now: int) -> bytes:
    day, _, clock = second_text(second).partition(" ")
    is_today = second_text(minute_now * 60).startswith(day)
    return f"{clock} ".encode() if is_today else f"{day} {clock} ".encode()
