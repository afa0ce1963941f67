"""Holds which nodes this one met for the newest attempt, also for the supervisor that takes over: it records the parts of the last save.

<state>/checkpoints/meeting.json
{"version": 1, "run", "attempt", "name", "node", "is_apart", "is_first"}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from checkpointing.io import durable, staging

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "meeting.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class NodeMeeting:
    """This node among those of an attempt. name: the same on all nodes, and of no other meeting. node: its number.

    is_apart: it is known that not all nodes see the same directories. is_first: the first of those that see the directories of this one.
    """

    attempt: int
    name: str
    node: int
    is_apart: bool
    is_first: bool


class MeetingRecord:
    """The newest meeting of one run. `problem`: why it could not be read or written, in one line; None if it could."""

    def __init__(self, directory: Path, run_id: str) -> None:
        """Read what an earlier supervisor of this run recorded."""
        self._file, self._run = directory / FILE_NAME, run_id
        self.problem: str | None = None
        self.newest: NodeMeeting | None = None
        try:
            row: dict[str, Any] = json.loads(durable.read(str(self._file)))
            if row.pop("version") == _VERSION and row.pop("run") == run_id:
                self.newest = NodeMeeting(**row)
        except (FileNotFoundError, NotADirectoryError):
            pass  # what is in the way there is reported when something is to be written
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.problem = f"the meeting of the nodes could not be read: {self._file}: {error}"

    def put(self, meeting: NodeMeeting) -> None:
        """Replace it. Without its file a supervisor that takes over does not record the parts of this attempt."""
        self.newest = meeting
        row = {"version": _VERSION, "run": self._run, **asdict(meeting)}
        try:
            durable.make_directory(str(self._file.parent))
            staging.write(str(self._file), json.dumps(row).encode("ascii"))
            self.problem = None
        except OSError as error:
            self.problem = f"the meeting of the nodes could not be recorded: {self._file}: {error.strerror}"
