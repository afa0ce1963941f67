"""Records which locations and writes of a job were discovered, for the next supervisor: rows of the catalogue."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.io.row_file import RowTable, TableChange

if TYPE_CHECKING:
    from pathlib import Path

#: A location with this many saves holds candidates.
REPEATED: Final = 2

Stat = tuple[int, int, int, int]  # device, inode, size, modification time in nanoseconds


@dataclass(frozen=True, slots=True)
class Location:
    """Where checkpoints of one kind lie.

    saved: logged saves, in_training: those of them that came after a first step. loaded: attempts that loaded from it, or tried to, before
    their first step. data: it was loaded like data.
    """

    pattern: str
    saved: int = 0
    loaded: int = 0
    data: bool = False
    t: float = 0.0
    in_training: int = 0

    @property
    def kind(self) -> str:
        """The standing of the location: checkpoint, candidate, or seen."""
        if self.data or not self.saved:
            return "seen"
        if self.loaded:
            return "checkpoint"
        return "candidate" if self.in_training or self.saved >= REPEATED else "seen"


@dataclass(frozen=True, slots=True)
class Write:
    """The writes of a rank of this run to one path."""

    path: str
    attempt: int
    t: float
    #: The file before its last save.
    before: Stat | None = None
    #: The file as the save left it; None while the save is under way, size -1 for a directory.
    after: Stat | None = None
    #: A save of it began, and no end was logged.
    interrupted: bool = False
    #: Nothing was there before its first save of this run.
    created_by_job: bool = False
    #: The save was logged before the script closed the file.
    logged_before_close: bool = False
    #: Its last save made another inode, under a temporary name or after the old file was removed.
    replaced: bool = False
    #: The saves of it that one rank began in this attempt, the most of any rank; 0: not known.
    save_count: int = 0

    @property
    def is_directory(self) -> bool:
        """Whether a directory was saved as a whole, and the save ended."""
        return self.after is not None and self.after[2] < 0


@dataclass(frozen=True, slots=True)
class MadeDirectory:
    """A directory that a rank of the run made."""

    path: str
    dev: int
    ino: int


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """The run whose writes and directories are recorded."""

    run: str


#: By pattern: where checkpoints were discovered: saves that were logged (`saved`, `in_training`), attempts that loaded (`loaded`), `data`.
LOCATION: Final = RowTable("location", Location, lambda row: row.pattern)
#: By path: what a rank of the last run wrote.
WRITE: Final = RowTable("write", Write, lambda row: row.path)
#: By path: a directory that a rank of the last run made.
MADE: Final = RowTable("made", MadeDirectory, lambda row: row.path)
#: One row: the run of `write` and `made`.
LOGGED: Final = RowTable("logged", LoggedRun, lambda _row: "")


@dataclass(frozen=True, slots=True)
class DiscoveryRecord:
    """The record of one job: its locations by pattern, and by path what ranks of `run` wrote, and the directories that they made."""

    locations: dict[str, Location] = field(default_factory=dict)
    writes: dict[str, Write] = field(default_factory=dict)
    made: dict[str, MadeDirectory] = field(default_factory=dict)
    run: str = ""


def read_locations(directory: Path) -> tuple[Location, ...]:
    """Return the locations that were discovered of a job, from its `checkpoints` directory; empty where none can be read."""
    return CheckpointCatalogue(directory).all(LOCATION)


def read(catalogue: CheckpointCatalogue) -> DiscoveryRecord:
    """Return the record."""
    logged = catalogue.get(LOGGED)
    return DiscoveryRecord(
        {row.pattern: row for row in catalogue.each(LOCATION)},
        {row.path: row for row in catalogue.each(WRITE)},
        {row.path: row for row in catalogue.each(MADE)},
        "" if logged is None else logged.run,
    )


def write(catalogue: CheckpointCatalogue, before: DiscoveryRecord, after: DiscoveryRecord) -> None:
    """Write what differs, durably."""
    catalogue.change(
        TableChange(LOCATION, before.locations, after.locations),
        TableChange(WRITE, before.writes, after.writes),
        TableChange(MADE, before.made, after.made),
        TableChange(LOGGED, {"": LoggedRun(before.run)}, {"": LoggedRun(after.run)}),
    )


def to_stat(row: Any) -> Stat | None:  # noqa: ANN401 (JSON)
    """Return what a row of JSON holds, None where there was no file."""
    if row is None:
        return None
    dev, ino, size, mtime_ns = (int(number) for number in row)
    return dev, ino, size, mtime_ns


def with_stat(write: Write) -> Write:
    """Return a write with the identity of the file that a cut save left, or whose save was logged before it was closed."""
    try:
        st = os.lstat(write.path)
    except OSError:
        return write
    if not stat.S_ISREG(st.st_mode):
        return write
    now, before = (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns), write.before
    if write.logged_before_close and not write.interrupted and write.after is not None:
        return replace(write, after=now if now[:2] == write.after[:2] else write.after, logged_before_close=False)
    rewritten_in_place = before is None or (before[:2] == now[:2] and before != now)
    return replace(write, after=now if rewritten_in_place and write.interrupted else write.after)
