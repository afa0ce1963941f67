"""The files with the output of an attempt's ranks: which there are, and when each part of one was written.

<attempt>/rank-0.out is a stream's current file, rank-0.out.1 the part before it. Beside each lies rank-0.out.times (rank-0.out.1.times), in
which the guardian notes a time and an offset about once a second (docs/guides/status-why-logs.md).
"""

from __future__ import annotations

import bisect
import contextlib
import os
import re
from typing import TYPE_CHECKING

from supervisor.core.values import Struct
from supervisor.guardian.logs import TIME_EVERY_S, TIMES_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

#: The newest notes, about an hour of them.
_NEWEST_BYTES = 1 << 16
_NAME = re.compile(r"(?P<who>rank-(?P<rank>\d+)|agent)\.(?P<stream>out|err|log)(?:\.(?P<part>\d+))?")


class TimeIndex:
    """When the bytes of one part were written. It follows its file through rotations; empty where an older version captured the part.

    is_newest: of its newest bytes only: a file of days has a note for each second.
    """

    def __init__(self, path: Path, *, is_newest: bool = False) -> None:
        self._times: list[float] = []
        self._offsets: list[int] = []
        self._rest = b""
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open(f"{path}{TIMES_SUFFIX}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        if is_newest and self._fd >= 0 and (size := os.fstat(self._fd).st_size) > _NEWEST_BYTES:
            os.lseek(self._fd, size - _NEWEST_BYTES, os.SEEK_SET)
            self._rest = b"x"  # the rest of the first line is not a line
        self.read_more()

    @property
    def is_empty(self) -> bool:
        """Whether no time is known."""
        return not self._times

    def read_more(self) -> None:
        """Read the notes that came since the last call. A line that is not whole, or is not a note, is passed over."""
        while self._fd >= 0 and (data := os.read(self._fd, 1 << 16)):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    at, _, offset = line.partition(b" ")
                    self._add(float(at), int(offset))

    def _add(self, at: float, offset: int) -> None:
        if not self._offsets or offset >= self._offsets[-1]:
            self._times.append(at)
            self._offsets.append(offset)

    def time_at(self, offset: int) -> float | None:
        """Return when the byte at `offset` was written, to about a second; None: not known."""
        at = bisect.bisect_right(self._offsets, offset) - 1
        return self._times[at] if at >= 0 else None

    def offset_since(self, since: float) -> int | None:
        """Return where the bytes that were written at `since` or later begin; None: there are none."""
        noted = zip(self._times, self._offsets, strict=True)
        return next((offset for at, offset in noted if at > since - TIME_EVERY_S), None)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FileEnd(Struct, frozen=True):
    """The end of a file: its bytes, where in it they begin, and when it was written last (Unix seconds)."""

    data: bytes
    at: int
    written_t: float


def end_of(path: Path, most_bytes: int) -> FileEnd | None:
    """Return the end of a file; None where it was rotated or removed, or cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        at = max(0, status.st_size - most_bytes)
        return FileEnd(os.pread(fd, most_bytes, at), at, status.st_mtime)
    except OSError:
        return None
    finally:
        os.close(fd)


def earlier_runs(directory: Path) -> list[str]:
    """Return the earlier runs whose output is kept, the newest first: a run's name begins with its time."""
    return sorted((p.name for p in (directory / "runs").glob("*") if p.is_dir()), reverse=True)


def attempts(directory: Path, run: str = "") -> list[int]:
    """Return the attempts with output, of the job's last run or of an earlier one."""
    return sorted(int(p.name) for p in of_run(directory, run).glob("[0-9]*") if p.name.isdecimal())


def of_run(directory: Path, run: str) -> Path:
    """Return the directory of the attempts of the last run, or of an earlier one."""
    return directory / "runs" / run if run else directory / "attempts"


def streams(place: Path, rank: int | None) -> list[tuple[Path, list[Path]]]:
    """Return each stream's current file and all its parts, the oldest first; of one rank, or of all."""
    parts: dict[Path, list[tuple[int, Path]]] = {}
    for path in place.glob("*"):
        named = _NAME.fullmatch(path.name)
        if named is None or (rank is not None and named["rank"] != str(rank)):
            continue
        current = place / f"{named['who']}.{named['stream']}"
        parts.setdefault(current, []).append((int(named["part"] or 0), path))
    return [(current, [path for _, path in sorted(parts[current], reverse=True)]) for current in sorted(parts, key=_order)]


def rank_of(path: Path) -> int | None:
    """Return the rank whose output a file has by its name; None for the agent's, and for any other."""
    named = _NAME.fullmatch(path.name)
    return int(named["rank"]) if named and named["rank"] else None


def _order(path: Path) -> tuple[int, str]:
    named = _NAME.fullmatch(path.name)
    # a rank's lines in order come before those about its end
    return (int(named["rank"]) if named and named["rank"] else -1, "err" if path.suffix == ".err" else "")
