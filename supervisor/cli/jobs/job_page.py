"""Gathers what the page of a job shows beside its report: where it is, the cards of its incidents, and the ends of its logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.cli.jobs.job_status import status_from
from supervisor.cli.jobs.log_end import newest_lines
from supervisor.cli.jobs.log_files import attempts, of_run
from supervisor.cli.jobs.why import next_start
from supervisor.report.card import why_page
from supervisor.report.html.job_page import JobPage, LogPart, shown_incidents

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from supervisor.cli.jobs.job_files import JobFiles
    from supervisor.report.layout import FactPage
    from supervisor.report.ledger.figures import JobReport
    from supervisor.view.incidents import RecordedIncident
    from supervisor.view.job_view import JobView

#: Lines of the log that the page has, and of the last error.
_MOST_LINES, _ERROR_LINES = 60, 30


def job_page_of(  # noqa: PLR0913  all that the page is made of
    place: JobFiles,
    seen: tuple[JobView, bool | None],
    report: JobReport | None,
    incidents: Sequence[RecordedIncident],
    address: str,
    *,
    all_runs: bool = False,
) -> JobPage:
    """Return what the page of a job shows. seen: its view, and whether its supervisor lives. incidents: of all runs that are kept."""
    view, alive = seen
    last = incidents[-1] if incidents else None
    return JobPage(
        status_from(place, view, alive),
        report,
        {} if report is None else cards_of(view, report, incidents, address),
        address,
        tuple(view.problems),
        None if last is None or view.run is None or last.run_id != view.run.run_id else _error_of(place, last, address),
        _log_of(place, address),
        all_runs,
    )


def cards_of(view: JobView, report: JobReport, incidents: Sequence[RecordedIncident], address: str) -> dict[int, FactPage]:
    """Return what `supervise why` shows of each incident that the page has, by its number."""
    recorded = {incident.number: incident for incident in incidents}
    shown = [recorded[cost.number] for cost in shown_incidents(report) if cost.number in recorded]
    last_run = report.runs[-1].run_id
    return {
        incident.number: why_page(report.job, report.node, incident, address, last_run=last_run, next_start=next_start(view, incident))
        for incident in shown
    }


def _error_of(place: JobFiles, incident: RecordedIncident, address: str) -> LogPart | None:
    """Return the last lines of the failed rank; None where no rank is known for it, or nothing of it is kept."""
    failure = incident.failures[-1]
    rank = failure.decision.verdict.rank if failure.decision is not None else None
    rank = incident.rank if rank is None else rank
    lines = [] if rank is None else newest_lines(_output_of(place, failure.attempt), rank, _MOST_LINES)
    lines = [line for line in lines if line.stream.endswith("err")] or lines
    title = f"Rank {rank} in attempt {failure.attempt}. All of it: supervise logs {address} --attempt {failure.attempt} --rank {rank}"
    return LogPart(title, tuple(line.rendered(has_stream=False) for line in lines[-_ERROR_LINES:])) if lines else None


def _log_of(place: JobFiles, address: str) -> LogPart | None:
    """Return the end of what the ranks of this node printed in the newest attempt that has output."""
    attempt = max(attempts(place.directory), default=0)
    lines = newest_lines(_output_of(place, attempt), None, _MOST_LINES)
    title = f"Attempt {attempt}, the newest {len(lines)} lines on {place.node}. All of it: supervise logs {address}"
    return LogPart(title, tuple(line.rendered(has_stream=True) for line in lines)) if lines else None


def _output_of(place: JobFiles, attempt: int) -> Path:
    """Return the directory of the captured output of an attempt of the last run."""
    return of_run(place.directory, "") / f"{attempt:04d}"
