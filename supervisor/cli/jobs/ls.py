"""`supervise ls`: the jobs whose files lie in one state directory, and where each stands."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import STATE_DIR, Invocation, json_option, setting_options
from supervisor.cli.jobs import job_status
from supervisor.cli.jobs.job_files import JobFiles, changed_at, places_in, state_root
from supervisor.core.time_text import span_text
from supervisor.core.values import Struct
from supervisor.errors import SuperviseError
from supervisor.report.status_page import Status
from supervisor.report.wording import step_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.config.settings import Settings

#: A terminal of fewer columns shows no attempt and no incidents.
_NARROW = 60


class ListedJob(Struct, frozen=True):
    """One job on one node: its files, where it stands, and when its journal changed last (Unix seconds)."""

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
        stdio.write(sys.stdout, json.dumps([job_status.as_dict(listed_job.status) for listed_job in listed], indent=1))
    elif listed:
        _print_table(listed, time.time())
    else:
        stdio.say(f"no job in {root}; --state-dir names another place")
    return 0


def state_word(found: Status) -> str:
    """Return where the job stands, in two or three words."""
    if not found.run:
        return "no run yet"
    if found.ended:
        return f"ended with {found.exit_code}"
    if found.supervisor_alive is None:
        return f"{found.stage}, not visible from here"
    return found.stage if found.supervisor_alive else "supervise died"


def _cells(one: ListedJob, now: float) -> dict[str, str]:
    status = one.status
    return {
        "job": status.job,
        "state": state_word(status),
        "step": "-" if status.step is None else step_text(status.step, relative=status.step_relative).removeprefix("step "),
        "attempt": str(status.attempt),
        "incidents": str(status.incidents),
        "changed": f"{span_text(now - one.changed)} ago",
        "node": status.node,
    }


def _print_table(listed: Sequence[ListedJob], now: float) -> None:
    from rich.console import Console  # noqa: PLC0415  for this command only
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    # a pipe has no width: nothing is folded there
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 10_000, highlight=False, emoji=False)
    without = {"attempt", "incidents"} if console.width < _NARROW else set[str]()
    if len({listed_job.place.node for listed_job in listed}) == 1:
        without.add("node")
    table = Table(box=None, pad_edge=False)
    rows = [_cells(listed_job, now) for listed_job in listed]
    for name in rows[0]:
        if name not in without:
            table.add_column(name, overflow="fold", no_wrap=name not in {"job", "state", "node"})
    for row in rows:
        table.add_row(*(Text(cell) for name, cell in row.items() if name not in without))
    with console.capture() as captured:  # written by us: rich ends the process where nobody reads any more
        console.print(table)
    stdio.write(sys.stdout, "\n".join(line.rstrip() for line in captured.get().splitlines()))
