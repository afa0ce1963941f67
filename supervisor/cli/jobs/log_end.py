"""The end of what the ranks of an attempt printed: the newest lines of all of them, in the order of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.cli.jobs.log_files import TimeIndex, end_of, rank_of, streams
from supervisor.core.values import Struct
from supervisor.job.local_time import clock_text

if TYPE_CHECKING:
    from pathlib import Path

#: The bytes to read of all streams together, and of each at least: many ranks write much the same.
_BYTES, _LEAST_BYTES = 256 << 10, 4 << 10


class LogLine(Struct, frozen=True):
    """A line that a rank wrote. t: Unix seconds, to about a second; None: not known. stream: `rank 0`, `rank 0 err`, `agent`."""

    t: float | None
    stream: str
    text: str

    def rendered(self, *, has_stream: bool) -> str:
        """Return the line with its time and, among those of other streams, with its own."""
        at = "" if self.t is None else f"{clock_text(self.t)} "
        return f"{at}{self.stream}: {self.text}" if has_stream else f"{at}{self.text}"


def newest_lines(attempt: Path, rank: int | None, most: int) -> list[LogLine]:
    """Return the newest lines of an attempt, the oldest first; of one rank, or of all. attempt: the directory of its captured output."""
    files = streams(attempt, rank)
    share = max(_LEAST_BYTES, _BYTES // max(1, len(files)))
    lines: list[tuple[float, LogLine]] = []
    for current, parts in files:
        own: list[tuple[float, LogLine]] = []
        for file in reversed(parts[-2:]):  # the newest may just have been begun
            if len(own) < most:
                own = [*_lines_of(file, _name_of(current), share), *own]
        lines += own[-most:]
    return [line for _, line in sorted(lines, key=lambda row: row[0])[-most:]]


def _name_of(current: Path) -> str:
    rank = rank_of(current)
    return "agent" if rank is None else f"rank {rank}" + (" err" if current.suffix == ".err" else "")


def _lines_of(file: Path, stream: str, most_bytes: int) -> list[tuple[float, LogLine]]:
    """Return the last lines of a file, each with when it was written or, where that is not known, when the file was.

    There are none where it was rotated or removed meanwhile.
    """
    end = end_of(file, most_bytes)
    if end is None:
        return []
    times = TimeIndex(file, is_newest=True)
    times.close()
    lines, at, is_cut = [], end.at, end.at > 0
    for raw in end.data.split(b"\n"):
        text = raw.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace").rstrip()  # of a progress bar the newest state
        if text and not is_cut:
            t = times.time_at(at)
            lines.append((end.written_t if t is None else t, LogLine(t, stream, text)))
        at, is_cut = at + len(raw) + 1, False
    return lines
