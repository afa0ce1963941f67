"""`supervise status`: prints where a job stands, or where all its nodes do."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
import time
from bisect import bisect_right
from typing import TYPE_CHECKING

import click

from supervisor.cli import alerts, stdio
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.all_nodes import all_nodes as all_nodes_of
from supervisor.cli.jobs.all_nodes import as_dict as all_nodes_as_dict
from supervisor.cli.jobs.job_files import find_job, state_root, with_a_run
from supervisor.cli.jobs.job_status import as_dict, status_of
from supervisor.core.values import replace
from supervisor.errors import ExitCode, SuperviseError
from supervisor.report.layout import render, surface_of
from supervisor.report.nodes_page import nodes_page
from supervisor.report.status_page import Status, incident_facts, status_page

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.cli.jobs.job_files import JobFiles
    from supervisor.config.settings import Settings

#: A page is made this often by --watch, or in a tenth of the time where that takes long.
WATCH_S = 2.0
#: In place of the lines that do not fit.
_MORE = "({} more lines: `supervise status` shows all)"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@click.command()
@setting_options(*JOB)
@click.option("--watch", is_flag=True, help="Show it again every 2 s, until the job ends.")
@click.option(
    "--probe",
    type=click.Choice(("live", "ready")),
    metavar="live|ready",
    help="Print one line; exit code 1 if supervise is not alive, or not ready.",
)
@click.option("--all-nodes", is_flag=True, help="Show where each node of the job stands, and how old that is.")
@click.option("--stacks", is_flag=True, help="Show what each rank of this node does now: stacks, process, the collective that it waits in.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="With --stacks: show one rank only.")
@click.option("-v", "--verbose", is_flag=True, help="List the alerts too: sent, refused with the service's answer, waiting.")
@json_option
def command(  # noqa: PLR0913  one for each option
    invocation: Invocation,
    *,
    watch: bool,
    probe: str | None,
    all_nodes: bool,
    stacks: bool,
    rank: int | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """Without --job it shows the most recent job here. The exit code is 0, whatever the job does, but for --probe.

    --stacks looks at the ranks of this node and their DataLoader workers. The job is not affected. It takes 10 s at most.
    """
    if probe is not None:
        from supervisor.cli.jobs.probe import answer  # noqa: PLC0415  for the probe of a pod only

        return answer(invocation, probe)
    settings = invocation.settings_to_read_with()
    if stacks:
        from supervisor.cli.jobs.stacks import stacks as show_stacks  # noqa: PLC0415  not for --help

        return show_stacks(settings, invocation.job(settings), rank)
    if rank is not None:
        raise SuperviseError("--rank requires --stacks", hint="Write `supervise status --stacks --rank N`.", exit_code=ExitCode.USAGE)
    if verbose and all_nodes:
        hint = "The alerts are those of one node: leave --all-nodes out."
        raise SuperviseError("--verbose and --all-nodes exclude each other", hint=hint, exit_code=ExitCode.USAGE)
    return status(settings, invocation.job(settings), as_json, watch=watch, all_nodes=all_nodes, verbose=verbose)


def status(  # noqa: PLR0913  as above
    settings: Settings,
    job: str | None,
    as_json: bool,  # noqa: FBT001  the command's own flag
    *,
    watch: bool = False,
    all_nodes: bool = False,
    verbose: bool = False,
) -> int:
    """Print where the job stands, or all its nodes; with `watch` again and again until it ends. verbose: with its alerts. Returns 0."""
    root = state_root(settings)
    place = with_a_run(root, find_job(root, job))
    address, indent = settings.address(place.job), None if watch else 1
    try:
        while True:
            began = time.monotonic()
            seen = status_of(place)
            if verbose:
                seen = replace(seen, alert_list=alerts.listed(place.directory))
            if all_nodes:
                text = _nodes_text(root, place, seen, address, indent, as_json=as_json)
            else:
                text = json.dumps(as_dict(seen), indent=indent) if as_json else _page(seen, address)
            if watch and not as_json and sys.stdout.isatty():
                text = _screenful(text, whole=not seen.runs)
            stdio.write(sys.stdout, text)
            if not (watch and seen.runs):
                return 0
            time.sleep(max(WATCH_S, 10 * (time.monotonic() - began)))
    except KeyboardInterrupt:  # how a watch ends
        return 0


def _screenful(text: str, *, whole: bool) -> str:
    """Return the text in the place of what the terminal shows, with as many of its lines as fit unless `whole`.

    Each line is overwritten and the rest of the screen erased, so that nothing flickers, and the terminal's modes stay as they are.
    """
    size = shutil.get_terminal_size()
    lines, rows = text.split("\n"), size.lines - 1  # the cursor's line stays free
    ends = list(itertools.accumulate(_rows(line, size.columns) for line in lines))
    if not whole and ends[-1] > rows:
        shown = max(1, bisect_right(ends, rows - _rows(_MORE.format(len(lines)), size.columns)))
        lines = [*lines[:shown], _MORE.format(len(lines) - shown)]
    return "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines[:-1]) + f"{lines[-1]}\x1b[K\x1b[J"


def _rows(line: str, columns: int) -> int:
    """Return how many rows of a terminal a line takes. A wide character (中, 🔥) takes two cells, and is never parted."""
    text = _COLOUR.sub("", line)
    if text.isascii():
        return max(1, -(-len(text) // columns))
    from rich.cells import get_character_cell_size  # noqa: PLC0415  for a terminal only

    rows, used = 1, 0
    for cells in map(get_character_cell_size, text):
        if used + cells > columns:
            rows, used = rows + 1, 0
        used += cells
    return rows


def _nodes_text(root: Path, place: JobFiles, seen: Status, address: str, indent: int | None, *, as_json: bool) -> str:  # noqa: PLR0913
    job_nodes_status = all_nodes_of(root, place)
    if as_json:
        return json.dumps(all_nodes_as_dict(job_nodes_status), indent=indent)
    return render(nodes_page(job_nodes_status, address, incident_facts(seen)), surface_of(sys.stdout))


def _page(seen: Status, address: str) -> str:
    return render(status_page(seen, address), surface_of(sys.stdout))
