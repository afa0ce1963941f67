"""The history and the time ledgers of a journal, for what looks at a job again and again: what was read once is not read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.journal.follower import JournalFollower
from supervisor.journal.reader import HistoryReading
from supervisor.report.ledger.reader import LedgerReading

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.journal.history import History
    from supervisor.journal.records import Damage, Record
    from supervisor.report.ledger.spans import RunLedger


class JournalReading:
    """One journal. After an exception of `advance` the next call reads the file anew."""

    def __init__(self, path: Path) -> None:
        self._follower = JournalFollower(path, self._begin)

    def _begin(self) -> JournalReading:
        self._history, self._ledger = HistoryReading(), LedgerReading()
        return self

    def take(self, record: Record | Damage) -> None:
        """Take what stands next in the journal."""
        self._history.take(record)
        self._ledger.take(record)

    def advance(self) -> bool:
        """Read what was added; return whether anything was. Raises OSError, and SuperviseError (78) for the journal of another version."""
        return self._follower.advance()

    def history(self) -> History:
        """Return what the journal tells so far, as `read_history` does; it is the caller's own."""
        return self._history.so_far()

    def ledgers(self, now: float | None = None) -> list[RunLedger]:
        """Return the ledgers of the runs so far. now: Unix seconds, where the last one goes on."""
        return self._ledger.ledgers(now)
