"""Opens a job's journal for writing: what the runs before left in it, and the writer that continues with it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from supervisor.core.state import JobState, Stage
from supervisor.core.values import Struct, replace
from supervisor.journal.file import JournalFile, OsFiles, earlier
from supervisor.journal.records import VERSION, Header, JournalPosition, Note, OtherFormatError, RunBegan, RunEnded, scan
from supervisor.journal.writer import Journal
from supervisor.view.job_view import JobView
from supervisor.view.keeping import EVERY_S, JobViewKeeper
from supervisor.view.reading import ViewBase, base_of, begun_from, read_view

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.journal.file import FileOperations
    from supervisor.journal.writer import Listener

#: Faults of a journal that a start names.
MAX_PROBLEMS = 20


class Past(Struct, frozen=True):
    """The facts that a start takes over from the journal of earlier runs."""

    state: JobState  # the last recorded one; where none was, a fresh one that holds only the number of incidents
    records: int  # how many the journal has
    events: int  # how many of them are events
    next_seq: int  # number of the next record
    last_run: RunBegan | None
    last_end: RunEnded | None  # None: the last run has no end record
    problems: tuple[str, ...]  # the faults of the journal
    incidents_before: int | None = None  # number of the earlier ones, for the next RunBegan; None if the run continues
    unrecorded_incidents: int = 0  # 1 if the supervisor died with no open incident: that death gets the next incident number

    def begun_anew(self) -> Past:
        """Return the past of a new run in a new file: it takes over the number of incidents and nothing else."""
        count = self.state.incidents + self.unrecorded_incidents
        return replace(self, state=JobState(incidents=count), incidents_before=count, unrecorded_incidents=0)


def past_of(view: JobView) -> Past:
    """Return what a start takes over from a journal that says this."""
    state, problem = view.state()
    problems = [text for text in (*(fault.text for fault in view.faults), view.torn) if text][:MAX_PROBLEMS]
    problems += [problem] if problem else []
    has_died = view.run is not None and view.end is None and view.stage != Stage.ENDED and view.open_incident is None
    return Past(
        state, view.record_count, view.event_count, view.next_seq, view.run, view.end, tuple(problems), unrecorded_incidents=int(has_died)
    )


def open_journal(  # noqa: PLR0913 (what, for whom, and three that tests replace)
    path: Path,
    *,
    job: str,
    node: str,
    listener: Listener,
    continues: Callable[[Past], bool] | None = None,
    files: FileOperations | None = None,
    view_every_s: float = EVERY_S,
) -> tuple[Journal, Past]:
    """Read the journal at `path`, begin to write to it, and return the writer and what the runs before left.

    If `continues` returns False for the run found, a new file begins, and the old one is kept next to it. The caller
    holds the job's lock. A file that cannot be read, holds no record, or is of another format is set aside once the directory allows it.
    Raises nothing: the writer reports an OSError as `degraded`.
    """
    problem = ""
    base, view = ViewBase(None, JournalPosition(), []), JobView()
    try:
        base = base_of(path)
        view = begun_from(base)
        for record in scan(path, base.position):
            view.take(record)
        past = past_of(view)
    except OSError as error:
        view, past = JobView(), past_of(JobView())
        problem = f"{path}: {error.strerror}"
    except OtherFormatError as error:
        unknown = f"{error.message}: it is set aside, and what earlier runs used up or rejected is not known"
        view, past = JobView(), replace(past_of(JobView()), problems=(unknown,))
    if past.last_run is None:
        past = _with_earlier(path, past)
    anew = continues is not None and past.events > 0 and not continues(past)
    if anew:
        past = past.begun_anew()
    begins = anew or not view.record_count
    keeper = JobViewKeeper(JobView(), None, every_s=view_every_s) if begins else JobViewKeeper(view, base.view, every_s=view_every_s)
    file = JournalFile(path, files or OsFiles(), set_aside=not view.record_count, anew=anew)
    journal = Journal(path, file, keeper.view.next_seq, listener, keeper)
    if begins or view.version != VERSION or view.node != node:
        journal.append(Header(job, node), t=time.time(), durable=True)
    if problem:
        journal.append(Note("journal_unreadable", problem), t=time.time(), durable=True)
    return journal, past


def _with_earlier(path: Path, past: Past) -> Past:
    """Return the facts where no run is in the file: its beginning never reached the disk; the last run is in the file before."""
    for older in earlier(path)[:1]:
        with suppress(OSError, OtherFormatError):
            before = past_of(read_view(older))
            known = replace(past, state=before.state, last_run=before.last_run, last_end=before.last_end)
            known = replace(known, unrecorded_incidents=before.unrecorded_incidents)
            return known.begun_anew()
    return past
