"""`supervise report`: where the time of a job went, by its journals: its time ledger, what its failures cost, and how often to save."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from checkpointing.io import staging
from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import JobFiles, find_job, histories_of, history_by, show_problems, state_root, with_a_run
from supervisor.errors import ExitCode, SuperviseError
from supervisor.journal.file import earlier
from supervisor.report.layout import render, surface_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.cli.jobs.journal_reading import JournalReading
    from supervisor.config.settings import Settings
    from supervisor.journal.history import History, RecordedIncident
    from supervisor.report.layout import FactPage
    from supervisor.report.ledger.figures import JobReport
    from supervisor.report.ledger.spans import RunLedger


@click.command()
@setting_options(*JOB)
@click.option("--all", "all_runs", is_flag=True, help="Add up all runs whose journals are kept, the five before the last one too.")
@click.option("--html", "html_file", metavar="FILE", help="Write the report to FILE, one page that needs nothing else.")
@json_option
def command(invocation: Invocation, *, all_runs: bool, html_file: str | None, as_json: bool) -> int:
    """It is about the last run, up to now if that goes on. The states add up to the wall clock. It works when the supervisor is gone."""
    settings = invocation.settings_to_read_with()
    return report(settings, invocation.job(settings), all_runs=all_runs, html_file=html_file, as_json=as_json)


def report(settings: Settings, job: str | None, *, all_runs: bool = False, html_file: str | None = None, as_json: bool = False) -> int:
    """Print the report on a job's last run, or on all that are kept, and write it to `html_file`. Returns 0."""
    root = state_root(settings)
    place = with_a_run(root, find_job(root, job))
    read = read_journals(place)
    found, address = job_report(place, read, all_runs=all_runs), settings.address(place.job)
    _add_nodes(found, root, place, read[-1][0])
    if html_file is not None:
        _write(Path(html_file), found, [incident for history, _ in read for incident in history.incidents], address)
    if as_json:
        from supervisor.report.ledger.document import document  # noqa: PLC0415  not for --help

        stdio.write(sys.stdout, json.dumps(document(found), indent=1))
    elif html_file is None:
        from supervisor.report.ledger.page import report_page  # noqa: PLC0415

        stdio.write(sys.stdout, render(report_page(found, address, all_runs=all_runs), surface_of(sys.stdout)))
    return 0


def _add_nodes(found: JobReport, root: Path, place: JobFiles, history: History) -> None:
    """Add what each node of the job took part in, and whom it found slow, as far as the journals show it that are here."""
    from supervisor.report.ledger.figures import node_shares, slow_spans  # noqa: PLC0415  not for --help

    histories = histories_of(root, place, history)
    found.nodes = node_shares(place.node, histories)
    for other in (other for host, other in histories.items() if host != place.node):
        found.slow += slow_spans(other, found.runs[-1].end_t if other.end is None else other.last_t)


def read_journals(place: JobFiles) -> list[tuple[History, list[RunLedger]]]:
    """Return the history and the ledgers of each journal of a job, the oldest first. Raises SuperviseError (78) as `scan`."""
    from supervisor.cli.jobs.journal_reading import JournalReading  # noqa: PLC0415  not for --help

    history, _, ledgers = newest_journal(place, JournalReading(place.journal))
    show_problems(history)
    return [*earlier_journals(place), (history, ledgers)]


def newest_journal(place: JobFiles, reading: JournalReading) -> tuple[History, bool | None, list[RunLedger]]:
    """Return the history of a job by now, whether its supervisor lives, and its ledgers. Raises as read_journals."""

    def read(_: Path) -> History:
        reading.advance()
        return reading.history()

    history, alive = history_by(place, read)
    # whether it goes on cannot be seen from another host: then it ends with its last record
    return history, alive, reading.ledgers(time.time() if alive else None)


def earlier_journals(place: JobFiles) -> list[tuple[History, list[RunLedger]]]:
    """Return the history and the ledgers of each earlier run's journal, the oldest first. Raises as read_journals."""
    read = []
    for path in reversed(earlier(place.journal)):
        try:
            read.append(earlier_journal(path))
        except OSError:  # removed meanwhile
            continue
        except SuperviseError as error:  # of another format
            stdio.say(error.message)
    return read


def earlier_journal(path: Path) -> tuple[History, list[RunLedger]]:
    """Return the history and the ledgers of one earlier run's journal. Raises OSError, and SuperviseError as read_journals."""
    from supervisor.cli.jobs.journal_reading import JournalReading  # noqa: PLC0415  not for --help
    from supervisor.journal.reader import abandoned  # noqa: PLC0415

    reading = JournalReading(path)
    reading.advance()
    return abandoned(reading.history()), reading.ledgers()


def job_report(place: JobFiles, read: Sequence[tuple[History, Sequence[RunLedger]]], *, all_runs: bool = False) -> JobReport:
    """Return the report on a job. Raises SuperviseError (64) where no run is recorded."""
    from supervisor.report.ledger.figures import report_of  # noqa: PLC0415  not for --help

    try:
        return report_of(place.job, place.node, read, all_runs=all_runs)
    except ValueError as error:
        hint = f"Its journal is {place.journal}; `supervise status --job {place.job}` shows what is there."
        raise SuperviseError(str(error), hint=hint, exit_code=ExitCode.USAGE) from error


def cards_of(found: JobReport, incidents: Iterable[RecordedIncident], address: str) -> dict[int, FactPage]:
    """Return what `supervise why` shows of each incident that a report's page has, by its number."""
    from supervisor.report.card import why_page  # noqa: PLC0415  not for --help
    from supervisor.report.ledger.html_page import shown_incidents  # noqa: PLC0415

    recorded = {incident.number: incident for incident in incidents}
    shown = [recorded[incident_cost.number] for incident_cost in shown_incidents(found) if incident_cost.number in recorded]
    return {
        recorded_incident.number: why_page(found.job, found.node, recorded_incident, address, last_run=found.runs[-1].run_id)
        for recorded_incident in shown
    }


def _write(file: Path, found: JobReport, incidents: Iterable[RecordedIncident], address: str) -> None:
    """Write the report as one page, and name the file on stderr."""
    from supervisor.report.ledger.html_page import html_page  # noqa: PLC0415  not for --help

    content = html_page(found, cards_of(found, incidents, address), address, time.time()).encode("utf-8", "replace")
    try:
        staging.write(str(file), content, is_durable=False)
    except OSError as error:
        raise SuperviseError(f"writing the report: {file}: {error.strerror}", hint="Name another file behind --html.") from error
    stdio.say(f"wrote {file} ({len(content) / 1024:.0f} KiB)")
