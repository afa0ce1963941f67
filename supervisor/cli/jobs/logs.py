"""`supervise logs`: prints the captured output of an attempt's ranks, as bytes."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli.invocation import JOB, Invocation, setting_options
from supervisor.cli.jobs.job_files import (
    JobFiles,
    earlier_views,
    find_job,
    goes_on,
    state_root,
    whole_view_of,
)
from supervisor.cli.jobs.log_files import attempts, earlier_runs
from supervisor.cli.jobs.log_output import LogSelection, show
from supervisor.core.values import replace
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from supervisor.config.settings import Settings
    from supervisor.view.job_view import JobView

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)")
_SECONDS: Final = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


def moment(text: str, now: float) -> float:
    """Return a time as Unix seconds: 30s, 10m, 2h or 1d ago, 14:05 (today or yesterday), or an ISO date and time. Raises ValueError."""
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return now - float(ago[1]) * _SECONDS[ago[2]]
    today = datetime.fromtimestamp(now)  # noqa: DTZ006  the clock of the person who asks
    if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
        hours, minutes, *seconds = map(int, text.split(":"))
        at = today.replace(hour=hours, minute=minutes, second=seconds[0] if seconds else 0, microsecond=0)
        return (at if at <= today else at - timedelta(days=1)).timestamp()
    return datetime.fromisoformat(text).timestamp()


def _since(_context: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else moment(text, time.time())
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a time: write 30s, 10m, 2h, 1d, 14:05 or 2026-11-23T14:05") from error


@click.command()
@setting_options(*JOB)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Print one rank only.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Print this attempt (default: the last).")
@click.option("--run", metavar="RUN", help="Print an earlier run of the job (default: the last).")
@click.option("--first-failure", is_flag=True, help="Print the rank that died first in the last failed attempt, or in --attempt.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Print the last N lines of each file.")
@click.option("--since", callback=_since, metavar="TIME", help="Print the lines since: 30s, 10m, 2h, 1d, 14:05, 2026-11-23T14:05.")
@click.option("--times/--no-times", default=None, help="Print the time before each line (default: on a terminal).")
@click.option("-f", "--follow", is_flag=True, help="Keep printing as the job writes more, through its restarts.")
def command(  # noqa: PLR0913  one for each option
    invocation: Invocation,
    *,
    rank: int | None,
    attempt: int | None,
    run: str | None,
    first_failure: bool,
    lines: int | None,
    since: float | None,
    times: bool | None,
    follow: bool,
) -> int:
    """Output is printed unchanged, apart from the optional timestamps. A line names each file if there are several."""
    settings = invocation.settings_to_read_with()
    times = sys.stdout.isatty() if times is None else times
    selection = LogSelection(rank=rank, lines=lines, since=since, times=times, follow=follow)
    return logs(settings, invocation.job(settings), attempt, selection, first_failure=first_failure, run=run)


def logs(  # noqa: PLR0913 (the command's own options)
    settings: Settings,
    job: str | None,
    attempt: int | None = None,
    selection: LogSelection = LogSelection(),  # noqa: B008 (a frozen value)
    *,
    first_failure: bool = False,
    run: str | None = None,
) -> int:
    """Write an attempt's captured output to stdout: of one rank, of the one that died first, or of all; of the last run or of `run`.

    Returns 0.
    """
    place = find_job(state_root(settings), job)
    view, alive = whole_view_of(place)
    older = ""
    if run is not None and (view.run is None or run != view.run.run_id):
        older, alive = run, False
        view = _earlier_run(place, run)
    failed = [i.failures[-1].attempt for i in view.incidents if view.run and i.run_id == view.run.run_id]
    follows = selection.follow and alive is not False
    selection = replace(selection, follow=follows, later_attempts=follows and attempt is None and not first_failure)
    if attempt is None:
        last = view.attempt or max(attempts(place.directory, older), default=0)
        attempt = failed[-1] if first_failure and failed else last
    if first_failure:
        rank = view.first_deaths.get(attempt)
        if rank is None:
            hint = _where_one_failed(place, settings.address(place.job), attempt, run)
            raise SuperviseError(f"no rank failed: job {place.job}: attempt {attempt}", hint=hint, exit_code=ExitCode.USAGE)
        selection = replace(selection, rank=rank)
    elif selection.rank is not None and attempt == view.attempt:
        _require_rank(place.job, selection.rank, attempt, view.world_size)
    return show(place.directory, place.job, attempt, selection, goes_on=lambda: goes_on(place), run=older)


def _require_rank(job: str, rank: int, attempt: int, world_size: int) -> None:
    """Raise SuperviseError (64) for a rank that the attempt does not have."""
    if world_size and rank >= world_size:
        hint = f"Name one from 0 to {world_size - 1} with --rank, or leave it out."
        raise SuperviseError(f"no such rank: job {job}: attempt {attempt}: {rank}", hint=hint, exit_code=ExitCode.USAGE)


def _earlier_run(place: JobFiles, run: str) -> JobView:
    """Return the facts of an earlier run: an empty view where only its output is kept. Raises SuperviseError (64)."""
    from supervisor.view.job_view import JobView  # noqa: PLC0415  not for --help

    view = next((h for _, h in earlier_views(place) if h.run is not None and h.run.run_id == run), None)
    kept = earlier_runs(place.directory)
    if view is None and run not in kept:
        hint = f"Name one of these with --run: {', '.join(kept)}." if kept else "Leave --run out: no output of an earlier run is kept."
        raise SuperviseError(f"no such run: job {place.job}: {run}", hint=hint, exit_code=ExitCode.USAGE)
    return view or JobView()


def _where_one_failed(place: JobFiles, address: str, attempt: int, run: str | None) -> str:
    """Return the hint for an attempt in which none did: the newest earlier run in which one did, else the attempt's own output."""
    for _, before in earlier_views(place) if run is None else ():
        if before.run is not None and before.first_deaths:
            return f"One did in an earlier run: `supervise logs {address} --run {before.run.run_id} --first-failure`."
    of_run = "" if run is None else f" --run {run}"
    return f"See all of it with `supervise logs {address}{of_run} --attempt {attempt}`."
