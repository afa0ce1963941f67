"""Watches whether the newest save of this run stays where it was saved, by what its ranks logged.

A rotation removes older saves and leaves the newest. One that sorts by the number in the name removes each new save, if a file of another
training has a greater number. Such a save is often gone before it could be verified, so the logged saves are watched, and not those
verified.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

from checkpointing import step_names
from supervisor.checkpoints.recording.reports import SaveGone

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.checkpoints.records import CheckpointRecords

#: A script may remove the last save before it makes the next one, and gather its state in between.
GONE_S: Final = 10.0


class NewestSave:
    """Watches the newest save of one run. Thread-safe. Its methods look at one path, and wait for its disk."""

    def __init__(self, records: CheckpointRecords, report: Callable[[SaveGone], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._records, self._report, self._clock = records, report, clock
        self._lock = threading.Lock()
        self._saves: tuple[str, ...] = ()
        self._missing, self._missing_t = "", 0.0  # since when (monotonic seconds) the newest save is not there
        self._reported = ""

    def read(self) -> None:
        """Take over what the ranks logged."""
        discovery = self._records.discovery
        if discovery is None or self._records.several_nodes:
            return
        self._saves = tuple(path for path in discovery.ended_saves(self._records.attempt) if self._is_watched(path))

    def look(self, *, is_at_rest: bool = False) -> None:
        """Report a newest save that is gone and stays so, once, and that a newer one is there. `is_at_rest`: no rank is alive."""
        with self._lock:
            saves = self._saves
            if not saves:
                return
            newest, now = saves[-1], self._clock()
            if os.path.lexists(newest) or (_is_in_place(newest) and any(map(os.path.lexists, saves))):
                self._missing = ""
                if self._reported:
                    self._reported = ""
                    self._report(SaveGone(newest, is_over=True))
                return
            if newest != self._missing:
                self._missing, self._missing_t = newest, now
            if self._reported or (now - self._missing_t < GONE_S and not is_at_rest) or self._was_moved(newest):
                return
            self._reported = newest
            self._report(SaveGone(newest))

    def _is_watched(self, path: str) -> bool:
        return self._records.locations.is_checkpoint_place(path) and not step_names.is_temporary(path)

    def _was_moved(self, path: str) -> bool:
        """Return whether supervise itself set it aside."""
        return any(change.path == path for change in self._records.moves.changes())


def _is_in_place(path: str) -> bool:
    """Return whether its name has no number, so that each save replaces the one before; another file may be the newest then."""
    return step_names.step_in(path) is None and step_names.epoch_in(path) is None
