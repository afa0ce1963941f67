"""Lists files that supervise moved out of a job's way, or put back: as rows, for JSON and for a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from checkpointing.model import size_text
from checkpointing.retention.aside import size_of
from supervisor.core.values import Struct
from supervisor.report.table import Column

if TYPE_CHECKING:
    from checkpointing.retention.aside import AsideChange

#: The columns of `cells_of`.
COLUMNS: Final = (Column("change", right=True), Column("what"), Column("size", right=True), Column("path", copied=True))


class ChangeRow(Struct, frozen=True):
    """One change (checkpointing.retention.aside.AsideChange). bytes: of what lies aside, None where nothing does."""

    id: int
    kind: str
    phase: str
    path: str
    to: str
    reason: str
    attempt: int
    t: float
    bytes: int | None = None

    @staticmethod
    def of(change: AsideChange) -> ChangeRow:
        """Return the row of a change."""
        size = size_of(change.to) if (change.kind, change.phase) == ("moved", "done") else None
        return ChangeRow(change.id, change.kind, change.phase, change.path, change.to, change.reason, change.attempt, change.t, size)

    def cells(self, outcome: str = "") -> list[tuple[str, str, str, str]]:
        """Return the rows of a table for it: where it was, and where it is. outcome: what became of it now."""
        words = ("was moved", "to") if self.kind == "moved" else ("was put there", "from the copy")
        state = outcome or ("" if self.phase == "done" else self.phase)
        size = "" if self.bytes is None else size_text(self.bytes)
        return [(str(self.id), words[0], size, self.path), ("", f"{words[1]}", "", self.to), *([("", state, "", "")] if state else [])]
