"""`supervise ls`: the jobs whose files lie in one state directory, and the state of each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import STATE_DIR, Invocation, json_option, setting_options
from supervisor.cli.jobs import job_status
from supervisor.cli.jobs.job_files import JobFiles, changed_at, places_in, state_root
from supervisor.core.units import span_text
from supervisor.core.values import Struct
from supervisor.errors import SuperviseError
from supervisor.report.layout import Tone
from supervisor.report.table import Cell, Column, Table
from supervisor.report.wording import step_text
from supervisor.view.status import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.config.settings import Settings


class ListedJob(Struct, frozen=True):
    """One job on one node: its files, where it is, and when its journal changed last (Unix seconds)."""

    place: JobFiles
    status: Status
    changed: float


@click.command()
@setting_options(*STATE_DIR)
@json_option
def command(invocation: Invocation, *, as_json: bool) -> int:
    """The last changed comes first. --state-dir names another state directory. With --json it is a list of what `status --json` prints."""
    return ls(invocation.settings_to_read_with(), as_json=as_json)


def ls(settings: Settings, *, as_json: bool) -> int:
    """Print the jobs. Returns 0, also where there is none."""
    root = state_root(settings)
    listed: list[ListedJob] = []
    for place in places_in(root):
        try:
            listed.append(ListedJob(place, job_status.status_of(place), changed_at(place)))
        except SuperviseError as error:
            stdio.say(f"{place.job}: {error.message}")
    if as_json:
        stdio.write_json([job.status for job in listed])
    elif listed:
        stdio.show(table(listed, time.time()))
    else:
        stdio.say(f"no job in {root}; --state-dir names another place")
    return 0


def table(jobs: Sequence[ListedJob], now: float) -> Table:
    """Return a row for each job. now: Unix seconds."""
    columns = (
        *(Column("job"), Column("state"), Column("step", right=True), Column("attempt", right=True)),
        *(Column("incidents", right=True), Column("changed"), Column("node")),
    )
    has_nodes = len({job.place.node for job in jobs}) > 1
    return Table(columns, tuple(_row(job, now, has_nodes=has_nodes) for job in jobs))


def _row(job: ListedJob, now: float, *, has_nodes: bool) -> tuple[Cell | str, ...]:
    status = job.status
    step = "-" if status.step is None else step_text(status.step, relative=status.step_relative).removeprefix("step ")
    state = Cell(status.state_text, Tone.BAD if status.exit_code or status.died else Tone.PLAIN)
    changed = f"{span_text(now - job.changed)} ago"
    return status.job, state, step, str(status.attempt), str(status.incidents), changed, status.node if has_nodes else ""
