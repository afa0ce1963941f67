"""Records which locations and writes of a job were discovered, for the next supervisor.

    <state>/checkpoints/learned.json
    {"version": 1, "run", "places": [{"pattern", "saved", "loaded", "data", "t", "in_training"}],
     "writes": [{"path", "attempt", "t", "before", "after", "interrupted", "created_by_job", "logged_before_close", "replaced",
     "save_count"}], "made": {directory: [device, inode]}}

A file that cannot be read costs only its content. One supervisor writes it: the one that holds the job's lock.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from checkpointing.io import durable, staging

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "learned.json"
#: A location with this many saves holds candidates.
REPEATED: Final = 2
_VERSION: Final = 1

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
        """What the location is taken for: checkpoint, candidate, or seen."""
        if self.data or not self.saved:
            return "seen"
        if self.loaded:
            return "checkpoint"
        return "candidate" if self.in_training or self.saved >= REPEATED else "seen"


@dataclass(frozen=True, slots=True)
class Write:
    """What a rank of this run wrote to one path."""

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
class DiscoveryRecord:
    """What is recorded of one job. made: each directory that a rank of `run` made, with its device and inode."""

    locations: tuple[Location, ...] = ()
    writes: tuple[Write, ...] = ()
    made: dict[str, tuple[int, int]] = field(default_factory=dict)
    run: str = ""


def read_locations(directory: Path) -> tuple[Location, ...]:
    """Return the locations that were discovered of a job, from its `checkpoints` directory; empty where none can be read."""
    return read(directory / FILE_NAME).locations


def read(file: Path) -> DiscoveryRecord:
    """Return the record; empty where it cannot be read, or is of a newer version."""
    try:
        content = json.loads(durable.read(str(file)))
        if int(content["version"]) > _VERSION:
            return DiscoveryRecord()
        locations = tuple(
            Location(
                str(row["pattern"]),
                int(row["saved"]),
                int(row["loaded"]),
                bool(row["data"]),
                float(row["t"]),
                int(row.get("in_training", 0)),
            )
            for row in content["places"]
        )
        writes = tuple(
            Write(
                str(row["path"]),
                int(row["attempt"]),
                float(row["t"]),
                to_stat(row["before"]),
                to_stat(row["after"]),
                bool(row["interrupted"]),
                bool(row["created_by_job"]),
                bool(row["logged_before_close"]),
                bool(row.get("replaced")),
                int(row.get("save_count", 0)),
            )
            for row in content["writes"]
        )
        made = {str(path): (int(dev), int(ino)) for path, (dev, ino) in content.get("made", {}).items()}
        return DiscoveryRecord(locations, writes, made, str(content["run"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # all is discovered anew
        return DiscoveryRecord()


def write(file: Path, record: DiscoveryRecord) -> None:
    """Replace the file and make it durable. Raises OSError."""
    content = {
        "version": _VERSION,
        "run": record.run,
        "places": [asdict(location) for location in record.locations],
        "writes": [asdict(write) for write in record.writes],
        "made": record.made,
    }
    durable.make_directory(str(file.parent))
    staging.write(str(file), json.dumps(content, indent=1).encode("ascii"))


def to_stat(row: Any) -> Stat | None:  # noqa: ANN401 (JSON)
    """Return what a row of JSON holds, None where there was no file."""
    if row is None:
        return None
    dev, ino, size, mtime_ns = (int(number) for number in row)
    return dev, ino, size, mtime_ns
