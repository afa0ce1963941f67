"""Keeps the view of the journal that is being written, and makes the records of it that stand among the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.journal.records import Header, Record, RunBegan, decode, unframe
from supervisor.view.snapshot import view_taken

if TYPE_CHECKING:
    from supervisor.journal.records import ViewTaken
    from supervisor.view.job_view import JobView

#: So often a view is written, in seconds of the job's clock.
EVERY_S: Final = 3600.0
#: One view of so many is full: a reader of the end of a journal reads back to it.
FULL_EVERY: Final = 24


class JobViewKeeper:
    """The view of one journal, for its writer; one thread at a time calls it.

    view: what the journal says already. base: the view in its last view record, from which the next one continues; None: there is none.
    """

    def __init__(self, view: JobView, base: JobView | None, *, every_s: float = EVERY_S) -> None:
        self.view = view
        self._base = base
        self._next: tuple[JobView, float] | None = None  # the view in the record that is being written, and its time
        self._every_s = every_s
        self._written_t: float | None = None  # since when a view is awaited; None: no record was written yet
        self._is_taken_over = False
        self._since_full = FULL_EVERY  # how many views were written since a full one

    def take(self, line: bytes) -> None:
        """Take the line of a record."""
        rec = unframe(line)
        record = None if rec is None else decode(rec)
        if record is not None:
            self.view.take(record)
            self._is_taken_over = isinstance(record.body, RunBegan) and record.body.continues
            if self._written_t is None and not isinstance(record.body, Header):
                self._written_t = record.t

    def is_due(self, t: float) -> bool:
        """Return whether a view is to be written: at a takeover, and once an hour. A clock that was set back does not delay it."""
        return self._is_taken_over or (
            self._written_t is not None and abs(t - self._written_t) >= self._every_s
        )  # clocks are set back, too

    def record(self, seq: int, t: float) -> ViewTaken:
        """Return the view up to now as the record of this number."""
        view = self.view.copied()
        view.take(Record(seq, t, "", "view", None))
        self._next = view, t
        return view_taken(view, self._base, full=self._since_full >= FULL_EVERY)

    def written(self) -> None:
        """Take that the record was taken, and the next one can continue from it."""
        if self._next is not None:
            self._since_full = 1 if self._since_full >= FULL_EVERY or self._base is None else self._since_full + 1
            self._base, self._written_t = self._next
            self.view, self._next, self._is_taken_over = self._base.copied(), None, False
