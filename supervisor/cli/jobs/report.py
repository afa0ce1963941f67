"""`supervise report`: where the time of a job went, by its journals: its time ledger, what its failures cost, and how often to save."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from checkpointing.io import staging
from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import find_job, show_problems, shown_reading, state_root, with_a_run
from supervisor.core.units import bytes_text
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from supervisor.config.settings import Settings


@click.command()
@setting_options(*JOB)
@click.option("--all", "all_runs", is_flag=True, help="Add up all runs whose journals are kept, the five before the last one too.")
@click.option("--html", "html_file", metavar="FILE", help="Write the report to FILE, one page that needs nothing else.")
@json_option
def command(invocation: Invocation, *, all_runs: bool, html_file: str | None, as_json: bool) -> int:
    """It is about the last run, up to now if that continues. The states add up to the wall clock. It works without the supervisor too."""
    settings = invocation.settings_to_read_with()
    return report(settings, invocation.job(settings), all_runs=all_runs, html_file=html_file, as_json=as_json)


def report(settings: Settings, job: str | None, *, all_runs: bool = False, html_file: str | None = None, as_json: bool = False) -> int:
    """Print the report on a job's last run, or on all that are kept, and write it to `html_file`. Returns 0."""
    from supervisor.cli.jobs.job_ledgers import add_nodes, earlier_journals, job_report, newest_journal  # noqa: PLC0415  not for --help
    from supervisor.view.reading import ViewFollower  # noqa: PLC0415

    root = state_root(settings)
    place = with_a_run(root, find_job(root, job))
    address = settings.address(place.job)
    with shown_reading(place) as progress:
        view, alive, ledgers = newest_journal(place, ViewFollower(place.journal, progress))
    show_problems(view)
    journals = [*earlier_journals(place), (view, ledgers)]
    data = job_report(place, journals, all_runs=all_runs)
    add_nodes(data, root, place, view)
    if html_file is not None:
        from supervisor.cli.jobs.job_page import job_page_of  # noqa: PLC0415
        from supervisor.report.html.job_page import job_page  # noqa: PLC0415

        incidents = [incident for read, _ in journals for incident in read.incidents]
        shown = job_page_of(place, (view, alive), data, incidents, address, all_runs=all_runs)
        _write(Path(html_file), job_page(shown, time.time()).html.encode("utf-8", "replace"))
    if as_json:
        from supervisor.report.ledger.document import document  # noqa: PLC0415

        stdio.write_json(document(data))
    elif html_file is None:
        from supervisor.report.ledger.page import report_pages  # noqa: PLC0415

        stdio.show(*report_pages(data, address, all_runs=all_runs))
    return 0


def _write(file: Path, content: bytes) -> None:
    """Write the page, and name the file on stderr. A file is replaced, also behind a link; a pipe or a device is written to."""
    try:
        if file.exists() and not file.is_file():
            file.write_bytes(content)
        else:
            staging.write(os.path.realpath(file), content, is_durable=False)
    except OSError as error:
        raise SuperviseError(f"writing the report: {file}: {error.strerror}", hint="Name another file after --html.") from error
    stdio.say(f"wrote {file} ({bytes_text(len(content))})")
