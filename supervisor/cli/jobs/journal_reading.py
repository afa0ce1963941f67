"""A journal that is read once, and then only what was added to it: its history and its time ledgers.

For what looks at a job again and again. Nothing is written and no lock is taken. A file that was replaced, because a new run began, or that
became shorter is read anew.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervisor.journal.reader import HistoryReading
from supervisor.journal.records import JournalPosition, scan
from supervisor.report.ledger.reader import LedgerReading

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.journal.history import History
    from supervisor.report.ledger.spans import RunLedger


class JournalReading:
    """One journal. After an exception of `advance` the next call reads the file anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._position, self._history, self._ledger = JournalPosition(), HistoryReading(), LedgerReading()
        self._mark: tuple[int, int, int, int] | None = None

    def advance(self) -> bool:
        """Read what was added; return whether anything was. Raises OSError, and SuperviseError (78) for a newer version's journal."""
        while (mark := mark_of(self._path)) != self._mark:
            is_same = self._mark is not None and mark is not None and mark[:2] == self._mark[:2] and mark[2] >= self._position.offset
            if not is_same:
                self._begin()
            if mark is None:
                return True
            self._mark = None  # until it is read without an error
            for found in scan(self._path, self._position):
                self._history.take_found(found)
                self._ledger.take(found)
            self._mark = mark
            if mark[:2] == (mark_of(self._path) or mark)[:2]:  # else it was replaced before it was opened
                return True
        return False

    def history(self) -> History:
        """Return what the journal tells so far, as `read_history` does; it is the caller's own."""
        return self._history.so_far()

    def ledgers(self, now: float | None = None) -> list[RunLedger]:
        """Return the ledgers of the runs so far. now: Unix seconds, where the last one goes on."""
        return self._ledger.ledgers(now)


def mark_of(path: Path) -> tuple[int, int, int, int] | None:
    """Return what changes when a journal grows or is replaced; None: there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116  over NFS as fresh as its attributes are
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
