"""Finds the files of a job, and reads its journal for the commands that read: they work when the supervisor is gone.

Nothing is written, and no lock is taken.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli import stdio
from supervisor.cli.progress import progress
from supervisor.core.model import Progress
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity, known_jobs
from supervisor.journal.file import earlier
from supervisor.run import lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from supervisor.config.settings import Settings
    from supervisor.observe.ranks.heartbeats import RankHeartbeat
    from supervisor.view.job_view import JobView
    from supervisor.view.reading import ReadReport

MOST_LISTED = 10


class JobFiles(Struct, frozen=True):
    """A job's files on one node."""

    job: str
    node: str
    directory: Path

    @property
    def journal(self) -> Path:
        """The journal, there or not."""
        return self.directory / "journal.jsonl"


def earlier_views(place: JobFiles) -> Iterator[tuple[Path, JobView]]:
    """Yield the journals of earlier runs that are kept, and their views, the newest first; stderr names one of another format."""
    from supervisor.view.reading import read_view  # noqa: PLC0415  not for --help

    for path in earlier(place.journal):
        try:
            yield path, read_view(path).abandoned()
        except OSError:  # removed meanwhile
            continue
        except SuperviseError as error:  # of another format
            stdio.say(error.message)


def state_root(settings: Settings) -> Path:
    """Return the directory of all jobs' files.

    A job that is named and is not here is found where it was last started, unless a directory is named too: an alert's command is
    copied into any shell.
    """
    here = identity.working_directory() / settings.job.state_dir
    job = settings.job.name
    if not job or settings.origin("job.state_dir").kind != "default" or (here / job).exists():
        return here
    return known_jobs.recall(job, os.environ) or here


def find_job(root: Path, job: str | None) -> JobFiles:
    """Return the files of `job`, else of the only or most recent one; a line on stderr says then how many there are.

    Where several nodes share the directory, it is this node's part, else the most recent. Raises SuperviseError (64) listing what there is.
    """
    places = places_in(root)
    jobs = list(dict.fromkeys(p.job for p in places))
    if job is None and not places:
        hint = "Start one with `supervise -- COMMAND`, or name the place with --state-dir."
        raise SuperviseError(f"no job: {root}: nothing was supervised here", hint=hint, exit_code=ExitCode.USAGE)
    if job is not None and job not in jobs:
        hint = f"Name one of these with --job: {', '.join(jobs[:MOST_LISTED])}." if jobs else "Name the place with --state-dir."
        raise SuperviseError(f"no such job: {root}: {job}", hint=hint, exit_code=ExitCode.USAGE)
    name = jobs[0] if job is None else job
    if job is None and len(jobs) > 1:
        stdio.say(f"{name}: the most recent of {len(jobs)} jobs here; --job NAME shows another")
    of_job = [p for p in places if p.job == name]
    here = identity.node_name()
    return next((p for p in of_job if p.node == here), of_job[0])


def places_in(root: Path) -> list[JobFiles]:
    """Return the files of all jobs on all nodes that share the directory, the last changed first; of one time, this node's."""
    here = identity.node_name()
    try:
        places = [JobFiles(p.parents[2].name, p.parent.name, p.parent) for p in root.glob("*/nodes/*/journal.jsonl")]
    except OSError:
        return []
    return sorted(places, key=lambda place: (changed_at(place), place.node == here), reverse=True)


def other_nodes(root: Path, place: JobFiles) -> list[JobFiles]:
    """Return the job's files on the other nodes that share the directory, in the order of `places_in`."""
    return [job_files for job_files in places_in(root) if job_files.job == place.job and job_files.node != place.node]


def with_a_run(root: Path, place: JobFiles) -> JobFiles:
    """Return these files if their journal has a run, else another node's whose journal has one, the last changed; stderr names it."""
    if _has_run(place):
        return place
    for other in other_nodes(root, place):
        try:
            has_run = _has_run(other)
        except SuperviseError as error:
            stdio.say(f"{other.node}: {error.message}")
            continue
        if has_run:
            show_problems(view_of(place)[0])  # a damaged one may have had a run
            stdio.say(f"the journal of {place.node} has no run: this is from that of {other.node}")
            return other
    return place


def _has_run(place: JobFiles) -> bool:
    return view_of(place)[0].run is not None


def changed_at(place: JobFiles) -> float:
    """Return when the journal changed last (Unix seconds)."""
    try:
        return place.journal.stat().st_mtime
    except OSError:
        return 0.0


def view_of(place: JobFiles) -> tuple[JobView, bool | None]:
    """Return the job's state by the end of its journal, and its supervisor's death, which nobody could record.

    The view's lists may begin late (JobView.after_seq). Raises as `view_by`.
    """
    from supervisor.view.reading import read_end  # noqa: PLC0415  not for --help

    return view_by(place, read_end)


def whole_view_of(place: JobFiles) -> tuple[JobView, bool | None]:
    """Return all that the journal tells, and as `view_of`. Raises as `view_by`."""
    from supervisor.view.reading import read_view  # noqa: PLC0415  not for --help

    with shown_reading(place) as report:
        return view_by(place, lambda path: read_view(path, report))


@contextlib.contextmanager
def shown_reading(place: JobFiles) -> Iterator[ReadReport]:
    """Return the display of how far a long journal is read."""
    with progress(f"reading the journal of {place.job}") as bar:
        yield lambda verb, done, total: bar.at(f"{verb} the journal of {place.job}", done, total)


def view_by(place: JobFiles, read: Callable[[Path], JobView]) -> tuple[JobView, bool | None]:
    """Return what `read` makes of the journal, and its supervisor's death. Raises SuperviseError where it cannot be read."""
    try:
        view = read(place.journal)
    except OSError as error:
        hint = "Read it as the user that runs the job, or name another place with --state-dir."
        raise SuperviseError(f"reading the journal: {place.journal}: {error.strerror}", hint=hint) from error
    alive = _alive(place, view)
    if alive is False:
        if view.end is None:
            view.progress = progress_of(view, live_beats(view))  # its ranks' heartbeats outlive it
        view.with_our_death()
    return view, alive


def _alive(place: JobFiles, view: JobView) -> bool | None:
    """Whether the supervisor of the last run lives: by the lock, else by what its run record says of its process."""
    if view.end is not None or view.run is None:
        return False
    try:
        held = lock.holder(place.directory / "lock")
    except SuperviseError:
        held = None
    if held is not None:
        return lock.is_alive(held)
    run = view.run
    if run.boot_id != identity.boot_id():
        return False if place.node == identity.node_name() else None
    return bool(run.start_ticks) and identity.start_ticks(run.pid) == run.start_ticks


def views_of(root: Path, place: JobFiles, own: JobView) -> dict[str, JobView]:
    """Return the views of the job's nodes that share the state directory, by host, that of `place` first; `own` is that one."""
    from supervisor.view.joint import of_one_job  # noqa: PLC0415  not for --help

    views = {place.node: own}
    if own.meetings or any(failure.members for incident in own.incidents for failure in incident.failures):
        for other in other_nodes(root, place):
            try:
                views[other.node], _ = whole_view_of(other)
            except SuperviseError as error:
                stdio.say(f"{other.node}: {error.message}")
    hosts = of_one_job(place.node, views)
    return {host: view for host, view in views.items() if host in hosts}


def goes_on(place: JobFiles) -> bool:
    """Whether the job may still write."""
    view, alive = view_of(place)
    return alive is not False and view.end is None


def live_beats(view: JobView) -> tuple[RankHeartbeat, ...]:
    """Return the heartbeats of the current attempt; none where they cannot be read."""
    if view.run is None or not view.run.scratch:
        return ()
    from supervisor.observe.ranks import heartbeats  # noqa: PLC0415 (only while the job runs)

    return heartbeats.read(identity.attempt_dir(view.run.scratch, view.attempt) / "heartbeat")


def progress_of(view: JobView, beats: Sequence[RankHeartbeat]) -> Progress:
    """Return the step of the rank that is furthest behind, and its phase; what the journal has where there is no heartbeat."""
    if not beats:
        return view.progress
    slowest = min(beats, key=lambda b: b.steps)
    known = [b.step for b in beats if b.step is not None]
    if known:
        return Progress(min(known), relative=False, phase=slowest.phase)
    return Progress(view.progress.step, view.progress.relative, slowest.phase)


def show_problems(view: JobView) -> None:
    """Show, on stderr, the faults of the journal."""
    for problem in view.problems[:MOST_LISTED]:
        stdio.say(f"journal: {problem}")
