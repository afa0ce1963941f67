"""`supervise status --stacks`: the look at the ranks that the detection of hangs takes, at any job that runs on this node."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from supervisor.cli import stdio
from supervisor.cli.jobs.job_files import JobFiles, find_job, live_beats, state_root, view_of
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity

if TYPE_CHECKING:
    from supervisor.config.settings import Settings
    from supervisor.core.model import RankInfo
    from supervisor.view.job_view import JobView


def stacks(settings: Settings, job: str | None, rank: int | None) -> int:
    """Print what the ranks of this node do now. Returns 0. Raises SuperviseError (64) where none runs here."""
    from supervisor.observe.hangs import look  # noqa: PLC0415  not for --help
    from supervisor.report.layout import surface_of  # noqa: PLC0415  as above
    from supervisor.report.look_page import text_of  # noqa: PLC0415  as above

    place = find_job(state_root(settings), job)
    view, alive = view_of(place)
    _require_ranks(place, view, alive)
    beats = live_beats(view)
    ranks = _ranks_to_look_at(place, look.with_beats(view.ranks, beats), rank)
    assert view.run is not None  # noqa: S101  an attempt runs
    directory = identity.attempt_dir(view.run.scratch, view.attempt)
    reports = look.take(ranks, directory, beats={beat.rank: beat for beat in beats})
    stdio.write(sys.stdout, text_of(reports, surface=surface_of(sys.stdout)).rstrip("\n"))
    return 0


def _require_ranks(place: JobFiles, view: JobView, alive: bool | None) -> None:  # noqa: FBT001  three values
    """Raise SuperviseError (64) where no rank of this node runs."""
    if place.node != identity.node_name():
        hint = f"Run the same command on {place.node}."
        raise SuperviseError(f"no rank of this node: job {place.job}: it runs on {place.node}", hint=hint, exit_code=ExitCode.USAGE)
    if alive is False or view.end is not None or view.run is None or not view.ranks:
        hint = "`supervise status` shows the job's state; `supervise why` has the stacks of a hang that was confirmed."
        raise SuperviseError(f"no rank runs: job {place.job}: attempt {view.attempt}", hint=hint, exit_code=ExitCode.USAGE)


def _ranks_to_look_at(place: JobFiles, ranks: tuple[RankInfo, ...], rank: int | None) -> tuple[RankInfo, ...]:
    """Return the ranks to look at. Raises SuperviseError (64) where none has this number."""
    selected = tuple(info for info in ranks if rank is None or info.rank == rank)
    if not selected:
        numbers = ", ".join(str(info.rank) for info in ranks)
        hint = f"Name one of {numbers} with --rank, or leave it out. For a rank of another node, run the command on that node."
        raise SuperviseError(f"no such rank on this node: job {place.job}: {rank}", hint=hint, exit_code=ExitCode.USAGE)
    return selected
