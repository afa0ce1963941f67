"""Reads the journals of a job, the earlier runs' too, for what reports on its time: `report` and `ui`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervisor.cli.jobs.job_files import earlier_views, view_by, views_of
from supervisor.errors import ExitCode, SuperviseError
from supervisor.report.ledger.figures import node_shares, report_of, slow_spans
from supervisor.view.reading import read_view

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from supervisor.cli.jobs.job_files import JobFiles
    from supervisor.report.ledger.figures import JobReport
    from supervisor.view.job_view import JobView
    from supervisor.view.reading import ViewFollower
    from supervisor.view.spans import RunLedger


def newest_journal(place: JobFiles, follower: ViewFollower) -> tuple[JobView, bool | None, list[RunLedger]]:
    """Return the view of a job by now, whether its supervisor lives, and its ledgers. Raises SuperviseError (78) as `scan`."""

    def read(_: Path) -> JobView:
        follower.advance()
        return follower.view.copied()

    view, alive = view_by(place, read)
    # whether it continues cannot be seen from another host: then it ends with its last record
    return view, alive, follower.view.ledgers(time.time() if alive else None)


def earlier_journals(place: JobFiles) -> list[tuple[JobView, list[RunLedger]]]:
    """Return the view and the ledgers of each earlier run's journal, the oldest first; stderr names one of another format."""
    return [(view, view.ledgers()) for _, view in earlier_views(place)][::-1]


def earlier_journal(path: Path) -> tuple[JobView, list[RunLedger]]:
    """Return the view and the ledgers of one earlier run's journal. Raises OSError, and SuperviseError as newest_journal."""
    view = read_view(path).abandoned()
    return view, view.ledgers()


def job_report(place: JobFiles, read: Sequence[tuple[JobView, Sequence[RunLedger]]], *, all_runs: bool = False) -> JobReport:
    """Return the report on a job. Raises SuperviseError (64) where no run is recorded."""
    try:
        return report_of(place.job, place.node, read, all_runs=all_runs)
    except ValueError as error:
        hint = f"Its journal is {place.journal}; `supervise status --job {place.job}` shows the job."
        raise SuperviseError(str(error), hint=hint, exit_code=ExitCode.USAGE) from error


def add_nodes(report: JobReport, root: Path, place: JobFiles, view: JobView) -> None:
    """Add what each node of the job took part in, and whom it found slow, as far as the journals show it that are here."""
    views = views_of(root, place, view)
    report.nodes = node_shares(place.node, views)
    for other in (other for host, other in views.items() if host != place.node):
        report.slow += slow_spans(other, report.runs[-1].end_t if other.end is None else other.last_t)
