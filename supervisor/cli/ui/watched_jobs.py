"""The jobs of a state directory as the page shows them: each journal is read once, and then what was added to it.

Nothing is written, no lock is taken, and a supervisor that died is no reason to show less. In memory are the journals of jobs that run, and
of the others the row in the list until their journal changes. One thread at a time calls this.
"""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

from supervisor.cli.jobs.job_files import JobFiles, changed_at, places_in
from supervisor.cli.jobs.job_status import status_from
from supervisor.cli.jobs.journal_reading import JournalReading
from supervisor.cli.jobs.ls import state_word
from supervisor.cli.jobs.report import cards_of, earlier_journal, job_report, newest_journal
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError
from supervisor.journal.file import earlier
from supervisor.journal.follower import mark_of
from supervisor.report import wording
from supervisor.report.card import outcome_text
from supervisor.report.layout import FactPage, Tone
from supervisor.report.ledger.figures import JobReport
from supervisor.report.status_page import Status, status_page
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.journal.history import History, RecordedIncident
    from supervisor.report.ledger.spans import RunLedger

#: Jobs that the list has: the last changed ones. `supervise ls` lists all.
MOST_JOBS = 200
#: How long one look at the list may read journals that it did not read before.
_READING_S = 1.0
#: Exit codes of a run that was stopped from outside: it did not fail.
_STOPPED = frozenset({ExitCode.REQUEUE, 128 + signal.SIGINT, 128 + signal.SIGTERM})


class JobRow(Struct, frozen=True):
    """A job in the list. "": not known. changed_t: Unix seconds. tone: of the state. is_read: else only its place is known."""

    job: str
    node: str
    changed_t: float
    state: str = "not read yet"
    tone: Tone = Tone.FAINT
    step: str = ""
    pace: str = ""
    ettr: str = ""
    incident: str = ""
    is_read: bool = False
    runs: bool = False


class JobView(Struct, frozen=True):
    """What the page of a job shows. report: None where no run is recorded yet. address: the options by which our other commands find it."""

    status: FactPage
    runs: bool
    address: str
    report: JobReport | None
    cards: dict[int, FactPage]
    problems: tuple[str, ...]


class WatchedJob:
    """One job on one node."""

    def __init__(self, place: JobFiles) -> None:
        self.place = place
        self._reading = JournalReading(place.journal)
        self._earlier: dict[Path, tuple[object, tuple[History, list[RunLedger]]]] = {}

    def _newest(self) -> tuple[Status, tuple[History, list[RunLedger]]]:
        """Return where the job stands, and its history and ledgers by now. Raises SuperviseError where its journal cannot be read."""
        history, alive, ledgers = newest_journal(self.place, self._reading)
        return status_from(self.place, history, alive), (history, ledgers)

    def row(self) -> JobRow:
        """Return its row in the list. Raises as `view`."""
        status, read = self._newest()
        ettr, pace = None, status.steps_per_s
        if read[1]:
            figures = job_report(self.place, [read]).figures
            ettr = figures.ettr
            pace = pace if status.runs or not figures.step_s else 1 / figures.step_s
        return JobRow(
            self.place.job,
            self.place.node,
            changed_at(self.place),
            state=_state_of(status),
            tone=_tone_of(status),
            step="" if status.step is None else wording.step_text(status.step, relative=status.step_relative).removeprefix("step "),
            pace=wording.pace_text(pace) if pace else "",
            ettr="" if ettr is None else f"{100 * ettr:.1f} %",
            incident=_incident_text(status.last_incident),
            is_read=True,
            runs=status.runs,
        )

    def view(self, address: str, *, all_runs: bool) -> JobView:
        """Return what its page shows. Raises SuperviseError where its journal cannot be read, or another version wrote it."""
        status, newest = self._newest()
        journals = [*self._read_earlier(), newest]
        page = status_page(status, address)
        problems = tuple(clean(problem) for problem in newest[0].problems)
        if not any(ledgers for _, ledgers in journals):
            return JobView(page, status.runs, address, None, {}, problems)
        found = job_report(self.place, journals, all_runs=all_runs)
        incidents = [incident for history, _ in journals for incident in history.incidents]
        return JobView(page, status.runs, address, found, cards_of(found, incidents, address), problems)

    def _read_earlier(self) -> list[tuple[History, list[RunLedger]]]:
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
        self._rows: dict[Path, tuple[object, JobRow]] = {}  # with the mark of the journal that it was made from

    def rows(self) -> tuple[list[JobRow], int]:
        """Return the rows of the list, the last changed first, and how many jobs there are; a new row may take a later call to be read."""
        places = places_in(self.root)
        shown = places[:MOST_JOBS]
        rows, spent_s = [], 0.0
        for place in shown:
            is_new, began = place.journal not in self._rows, time.monotonic()
            rows.append(self._row(place, may_read=spent_s <= _READING_S))
            spent_s += time.monotonic() - began if is_new else 0.0
        here = {place.journal for place in shown}
        self._rows = {path: row for path, row in self._rows.items() if path in here}
        self._running = {path: job for path, job in self._running.items() if path in here}
        return rows, len(places)

    def _row(self, place: JobFiles, *, may_read: bool) -> JobRow:
        known = self._rows.get(place.journal)
        if known is None and not may_read:
            return JobRow(place.job, place.node, changed_at(place))
        mark: object = None
        job = self._running.pop(place.journal, None)
        try:
            mark = mark_of(place.journal)
            if known is not None and known[0] == mark and not known[1].runs:
                return known[1]  # nothing but its journal can change it
            job = job or WatchedJob(place)
            row = job.row()
        except Exception as error:  # noqa: BLE001  one job must not hide the others
            row = self._broken(place, error)
        self._rows[place.journal] = mark, row
        if row.runs and job is not None:
            self._running[place.journal] = job
        return row

    def _broken(self, place: JobFiles, error: Exception) -> JobRow:
        """Return the row of a job that cannot be shown, and report it once."""
        text = error.message if isinstance(error, SuperviseError) else f"it cannot be shown: {type(error).__name__}: {error}"
        if (place.journal, text) not in self._reported:
            self._reported.add((place.journal, text))
            self._report(f"{place.job}: {clean(text)}")
        return JobRow(place.job, place.node, changed_at(place), state="cannot be shown", tone=Tone.BAD, incident=clean(text), is_read=True)

    def view(self, job: str, node: str, *, all_runs: bool) -> JobView | None:
        """Return what the page of a job shows; None: there is no such job. Raises as WatchedJob.view."""
        # what a request names is only compared with what is there, and never made a path
        place = next((job_files for job_files in places_in(self.root) if (job_files.job, job_files.node) == (job, node)), None)
        if place is None:
            return None
        watched_job = self._running.get(place.journal) or WatchedJob(place)
        view = watched_job.view(self._address_of(job), all_runs=all_runs)
        if view.runs:
            self._running[place.journal] = watched_job
        return view


def _state_of(status: Status) -> str:
    if status.hang is not None and status.runs:
        return f"{state_word(status)}, stands still"
    return state_word(status)


def _tone_of(status: Status) -> Tone:
    if not status.run or status.exit_code == 0:
        return Tone.FAINT
    if not status.runs:
        return Tone.WARNING if status.exit_code in _STOPPED else Tone.BAD
    if status.incident is not None or status.hang is not None or status.warnings:
        return Tone.WARNING
    return Tone.GOOD if status.supervisor_alive else Tone.FAINT  # on another host it may be dead


def _incident_text(last: RecordedIncident | None) -> str:
    """Return the last incident in one line."""
    if last is None:
        return ""
    decided = next((one.decision for one in reversed(last.rounds) if one.decision is not None), None)
    what = decided.verdict.cause.value if decided is not None else last.summary
    rank = decided.verdict.rank if decided is not None else last.rank
    whose = "" if rank is None or decided is None else f" of rank {rank}"
    outcome = "" if what.startswith(last.outcome) else f": {outcome_text(last)}"
    return clean(f"{last.number}: {what}{whose}{outcome}")
