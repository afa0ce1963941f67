"""The jobs of a state directory as the page shows them: each journal is read once, and then its new records.

Nothing is written, no lock is taken, and a dead supervisor is not a reason to show less. In memory are the journals of jobs that run, and
of the others the row in the list until their journal changes. One thread at a time calls this.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from supervisor.cli.jobs.job_files import JobFiles, changed_at, places_in, view_by
from supervisor.cli.jobs.job_ledgers import earlier_journal, job_report, newest_journal
from supervisor.cli.jobs.job_page import job_page_of
from supervisor.cli.jobs.job_status import log_tail_of, status_from
from supervisor.cli.jobs.log_tail import LoggedProgress
from supervisor.cli.ui.job_rows import JobRow, RowGroup, in_order, joined, row_of
from supervisor.errors import SuperviseError
from supervisor.journal.file import earlier
from supervisor.report.text import clean
from supervisor.view.reading import ViewFollower, mark_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.report.html.job_page import JobPage
    from supervisor.view.job_view import JobView
    from supervisor.view.spans import RunLedger

#: Jobs that the list has: the last changed ones. `supervise ls` lists all.
MOST_JOBS = 200
#: How long one look at the list may read journals that it did not read before.
_READING_S = 1.0
#: How often the list reads the end of a log.
_TAIL_S = 60.0
#: Rows stay this many times as long as reading them took, so that all filters together take a tenth of one CPU.
_SHARE = 10


class WatchedJob:
    """One job on one node. address: the options by which our other commands find it."""

    def __init__(self, place: JobFiles, address: str) -> None:
        self.place, self._address = place, address
        self._newest = ViewFollower(place.journal, is_whole=False)  # of the list, which needs no more
        self._whole: ViewFollower | None = None  # of its page
        self._tail, self._tail_attempt, self._tail_until = (
            LoggedProgress(),
            -1,
            0.0,
        )  # of its log: how many steps it has in all changes rarely
        self._earlier: dict[Path, tuple[object, tuple[JobView, list[RunLedger]]]] = {}

    def row(self) -> JobRow:
        """Return its row in the list. Raises SuperviseError where its journal cannot be read, or another version wrote it."""

        def read(_: Path) -> JobView:
            self._newest.advance()
            return self._newest.view.copied()

        view, alive = view_by(self.place, read)
        if time.monotonic() >= self._tail_until or view.attempt != self._tail_attempt:
            self._tail, self._tail_attempt = log_tail_of(self.place, view), view.attempt
            self._tail_until = time.monotonic() + _TAIL_S
        return row_of(status_from(self.place, view, alive, tail=self._tail), view, self._address, changed_at(self.place))

    def page(self, *, all_runs: bool) -> JobPage:
        """Return what its page shows. Raises as `row`."""
        self._whole = self._whole or ViewFollower(self.place.journal)
        view, alive, ledgers = newest_journal(self.place, self._whole)
        journals = [*self._read_earlier(), (view, ledgers)]
        report = job_report(self.place, journals, all_runs=all_runs) if any(ledgers for _, ledgers in journals) else None
        incidents = [incident for read, _ in journals for incident in read.incidents]
        return job_page_of(self.place, (view, alive), report, incidents, self._address, all_runs=all_runs)

    def _read_earlier(self) -> list[tuple[JobView, list[RunLedger]]]:
        """Return the journals of earlier runs, the oldest first; each is read once, as nobody writes it any more."""
        kept = {}
        for path in reversed(earlier(self.place.journal)):
            with contextlib.suppress(OSError, SuperviseError):  # removed meanwhile, or of another format
                mark, known = mark_of(path), self._earlier.get(path)
                kept[path] = known if known is not None and known[0] == mark else (mark, earlier_journal(path))
        self._earlier = kept
        return [read for _, read in kept.values()]


class WatchedJobs:
    """All jobs of a state directory. address_of: the options by which our other commands find a job. report: writes a line for a person."""

    def __init__(self, root: Path, address_of: Callable[[str], str], report: Callable[[str], None]) -> None:
        self.root, self._address_of, self._report = root, address_of, report
        self._reported: set[tuple[Path, str]] = set()
        self._running: dict[Path, WatchedJob] = {}
        self._kept: tuple[list[JobRow], int] = ([], 0)
        self._kept_until = 0.0
        self._rows: dict[Path, tuple[object, JobRow]] = {}  # with the mark of the journal that it was made from

    def kept_rows(self) -> tuple[list[JobRow], int]:
        """Return `rows` of a moment ago, or of now: each filter is a page of its own, and they have the rows in common."""
        if time.monotonic() >= self._kept_until:
            began = time.monotonic()
            self._kept = self.rows()
            ended = time.monotonic()
            self._kept_until = ended + (_SHARE * (ended - began) if all(row.is_read for row in self._kept[0]) else 0.0)
        return self._kept

    def rows(self) -> tuple[list[JobRow], int]:
        """Return the rows of the list in their order, and how many jobs there are; a new row may take a later call to be read."""
        places = places_in(self.root)
        jobs = list(dict.fromkeys(place.job for place in places))
        most = set(jobs[:MOST_JOBS])
        shown = [place for place in places if place.job in most]
        rows, spent_s = [], 0.0
        for place in shown:
            is_new, began = place.journal not in self._rows, time.monotonic()
            rows.append(self._row(place, may_read=spent_s <= _READING_S))
            spent_s += time.monotonic() - began if is_new else 0.0
        here = {place.journal for place in shown}
        self._rows = {path: row for path, row in self._rows.items() if path in here}
        self._running = {path: job for path, job in self._running.items() if path in here}
        return in_order(joined(rows)), len(jobs)

    def _row(self, place: JobFiles, *, may_read: bool) -> JobRow:
        known = self._rows.get(place.journal)
        if known is None and not may_read:
            return JobRow(place.job, place.node, changed_at(place), nodes=(place.node,))
        mark: object = None
        job = self._running.pop(place.journal, None)
        try:
            mark = mark_of(place.journal)
            if known is not None and known[0] == mark and not known[1].runs:
                return known[1]  # nothing but its journal can change it
            job = job or self._watched(place)
            row = job.row()
        except Exception as error:  # noqa: BLE001  one job must not hide the others
            row = self._broken(place, error)
        self._rows[place.journal] = mark, row
        if row.runs and job is not None:
            self._running[place.journal] = job
        return row

    def _watched(self, place: JobFiles) -> WatchedJob:
        return WatchedJob(place, self._address_of(place.job))

    def _broken(self, place: JobFiles, error: Exception) -> JobRow:
        """Return the row of a job that cannot be shown, and report it once."""
        text = clean(error.message if isinstance(error, SuperviseError) else f"it cannot be shown: {type(error).__name__}: {error}")
        if (place.journal, text) not in self._reported:
            self._reported.add((place.journal, text))
            self._report(f"{place.job}: {text}")
        state = "cannot be shown"
        return JobRow(place.job, place.node, changed_at(place), RowGroup.NEEDS, state, "bad", text, nodes=(place.node,))

    def page(self, job: str, node: str, *, all_runs: bool) -> JobPage | None:
        """Return what the page of a job shows; None: there is no such job. Raises as WatchedJob.page."""
        # a name in a request is only compared with existing names, and never made a path
        place = next((job_files for job_files in places_in(self.root) if (job_files.job, job_files.node) == (job, node)), None)
        if place is None:
            return None
        watched_job = self._running.get(place.journal) or self._watched(place)
        page = watched_job.page(all_runs=all_runs)
        if page.status.runs:
            self._running[place.journal] = watched_job
        return page
