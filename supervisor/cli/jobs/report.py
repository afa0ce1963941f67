"""`supervise report`: where the time of a job went, by its journals: its time ledger, what its failures cost, and how often to save."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import JobFiles, find_job, history_of, show_problems, state_root
from supervisor.errors import ExitCode, SuperviseError
from supervisor.journal.file import earlier
from supervisor.report.layout import render, surface_of

if TYPE_CHECKING:
    from supervisor.config.settings import Settings
    from supervisor.report.ledger.figures import JobReport


@click.command()
@setting_options(*JOB)
@click.option("--all", "all_runs", is_flag=True, help="Add up all runs whose journals are kept, the five before the last one too.")
@json_option
def command(invocation: Invocation, *, all_runs: bool, as_json: bool) -> int:
    """It is about the last run, up to now if that goes on. The states add up to the wall clock. It works when the supervisor is gone."""
    settings = invocation.settings_to_read_with()
    return report(settings, invocation.job(settings), all_runs=all_runs, as_json=as_json)


def report(settings: Settings, job: str | None, *, all_runs: bool = False, as_json: bool = False) -> int:
    """Print the report on a job's last run, or on all that are kept. Returns 0."""
    from supervisor.report.ledger.document import document  # noqa: PLC0415  not for --help
    from supervisor.report.ledger.page import report_page  # noqa: PLC0415

    place = find_job(state_root(settings), job)
    found = job_report(place, all_runs=all_runs)
    if as_json:
        stdio.write(sys.stdout, json.dumps(document(found), indent=1))
    else:
        stdio.write(sys.stdout, render(report_page(found, settings.address(place.job), all_runs=all_runs), surface_of(sys.stdout)))
    return 0


def job_report(place: JobFiles, *, all_runs: bool = False) -> JobReport:
    """Return the report on a job. Raises SuperviseError: 64 where no run is recorded, 78 for a journal of a newer version."""
    from supervisor.journal.reader import read_earlier  # noqa: PLC0415  loads msgspec: not for --help
    from supervisor.journal.records import scan  # noqa: PLC0415
    from supervisor.report.ledger.figures import report_of  # noqa: PLC0415
    from supervisor.report.ledger.reader import ledgers_of  # noqa: PLC0415

    history, alive = history_of(place)
    show_problems(history)
    read = []
    for path in reversed(earlier(place.journal)):
        with contextlib.suppress(OSError):  # removed meanwhile
            read.append((read_earlier(path), ledgers_of(scan(path))))
    # whether it goes on cannot be seen from another host: then it ends with its last record
    read.append((history, ledgers_of(scan(place.journal), time.time() if alive else None)))
    try:
        return report_of(place.job, place.node, read, all_runs=all_runs)
    except ValueError as error:
        hint = f"Its journal is {place.journal}; `supervise status --job {place.job}` shows what is there."
        raise SuperviseError(str(error), hint=hint, exit_code=ExitCode.USAGE) from error
