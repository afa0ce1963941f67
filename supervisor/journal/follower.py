"""Follows a journal while it grows: each look takes what was added since the last one, so that nothing is read twice.

It reads the file as any other process could, and holds no descriptor between two looks. Nothing is written and no lock is taken. A file
that was replaced, because a new run began, or that became shorter is read anew.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from supervisor.journal.records import JournalPosition, scan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.journal.records import Damage, Record


class RecordTaker(Protocol):
    """What is made of a journal's records."""

    def take(self, record: Record | Damage) -> None:
        """Take what stands next in the journal."""
        ...


class JournalFollower:
    """One journal. begin: makes what takes its records, anew for each file. After an exception of `advance` the next call reads it anew."""

    def __init__(self, path: Path, begin: Callable[[], RecordTaker]) -> None:
        self._path, self._begin_anew = path, begin
        self._begin()

    def _begin(self) -> None:
        self._position, self._taker = JournalPosition(), self._begin_anew()
        self._mark: tuple[int, int, int, int] | None = None

    def advance(self) -> bool:
        """Read what was added; return whether anything was. Raises OSError, and SuperviseError (78) for the journal of another version."""
        while (mark := mark_of(self._path)) != self._mark:
            is_same = self._mark is not None and mark is not None and mark[:2] == self._mark[:2] and mark[2] >= self._position.offset
            if not is_same:
                self._begin()
            if mark is None:
                return True
            self._mark = None  # until it is read without an error
            for record in scan(self._path, self._position):
                self._taker.take(record)
            self._mark = mark
            if mark[:2] == (mark_of(self._path) or mark)[:2]:  # else it was replaced before it was opened
                return True
        return False


def mark_of(path: Path) -> tuple[int, int, int, int] | None:
    """Return what changes when a journal grows or is replaced; None: there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116  over NFS as fresh as its attributes are
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
