"""Holds which nodes this one met for the newest attempt, also for the supervisor that takes over: it records the parts of the last save."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from checkpointing.io.row_file import RowTable

if TYPE_CHECKING:
    from checkpointing.catalogue import CheckpointCatalogue


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
    run: str = ""


#: One row: which nodes met for the newest attempt.
MEETING: Final = RowTable("meeting", NodeMeeting, lambda _row: "")


class MeetingRecord:
    """The newest meeting of one run."""

    def __init__(self, catalogue: CheckpointCatalogue, run_id: str) -> None:
        """Read what an earlier supervisor of this run recorded."""
        self._catalogue, self._run = catalogue, run_id
        row = catalogue.get(MEETING)
        self.newest = row if row is not None and row.run == run_id else None

    def put(self, meeting: NodeMeeting) -> None:
        """Replace it. Without its row a supervisor that takes over does not record the parts of this attempt."""
        self.newest = replace(meeting, run=self._run)
        self._catalogue.put(MEETING, self.newest)
