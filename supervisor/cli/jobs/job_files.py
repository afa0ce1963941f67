"""Finds the files of a job, and reads its journal for the commands that read: they work when the supervisor is gone.

Nothing is written, and no lock is taken.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli import stdio
from supervisor.core.model import Progress
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity, known_jobs
from supervisor.journal.file import earlier
from supervisor.run import lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from supervisor.config.settings import Settings
    from supervisor.journal.history import History
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

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


def earlier_histories(place: JobFiles) -> Iterator[History]:
    """Yield the job's earlier runs whose journals are kept, the newest first."""
    from supervisor.journal.reader import read_earlier  # noqa: PLC0415  not for --help

    for path in earlier(place.journal):
        try:
            yield read_earlier(path)
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
        found = [JobFiles(p.parents[2].name, p.parent.name, p.parent) for p in root.glob("*/nodes/*/journal.jsonl")]
    except OSError:
        return []
    return sorted(found, key=lambda place: (changed_at(place), place.node == here), reverse=True)


def other_nodes(root: Path, place: JobFiles) -> list[JobFiles]:
    """Return the job's files on the other nodes that share the directory, in the order of `places_in`."""
    return [job_files for job_files in places_in(root) if job_files.job == place.job and job_files.node != place.node]


def with_a_run(root: Path, place: JobFiles) -> JobFiles:
    """Return these files if their journal has a run, else another node's whose journal has one, the last changed; stderr names it."""
    if _has_run(place):
        return place
    for other in other_nodes(root, place):
        try:
            found = _has_run(other)
        except SuperviseError as error:
            stdio.say(f"{other.node}: {error.message}")
            continue
        if found:
            show_problems(history_of(place)[0])  # a damaged one may have had a run
            stdio.say(f"the journal of {place.node} has no run: this is from that of {other.node}")
            return other
    return place


def _has_run(place: JobFiles) -> bool:
    return history_of(place)[0].run is not None


def changed_at(place: JobFiles) -> float:
    """Return when the journal changed last (Unix seconds)."""
    try:
        return place.journal.stat().st_mtime
    except OSError:
        return 0.0


def history_of(place: JobFiles) -> tuple[History, bool | None]:
    """Return what the journal tells, and its supervisor's death, which nobody could record."""
    from supervisor.journal.reader import read_history  # noqa: PLC0415  not for --help

    return history_by(place, read_history)


def history_by(place: JobFiles, read: Callable[[Path], History]) -> tuple[History, bool | None]:
    """Return what `read` makes of the journal, and its supervisor's death. Raises SuperviseError where it cannot be read."""
    try:
        history = read(place.journal)
    except OSError as error:
        hint = "Read it as the user that runs the job, or name another place with --state-dir."
        raise SuperviseError(f"reading the journal: {place.journal}: {error.strerror}", hint=hint) from error
    alive = _alive(place, history)
    if alive is False:
        if history.end is None:
            history.progress = progress_of(history, live_beats(history))  # its ranks' heartbeats outlive it
        history.with_our_death()
    return history, alive


def _alive(place: JobFiles, history: History) -> bool | None:
    """Whether the supervisor of the last run lives: by the lock, else by what its run record says of its process."""
    if history.end is not None or history.run is None:
        return False
    try:
        held = lock.holder(place.directory / "lock")
    except SuperviseError:
        held = None
    if held is not None:
        return lock.is_alive(held)
    run = history.run
    if run.boot_id != identity.boot_id():
        return False if place.node == identity.node_name() else None
    return bool(run.start_ticks) and identity.start_ticks(run.pid) == run.start_ticks


def histories_of(root: Path, place: JobFiles, own: History) -> dict[str, History]:
    """Return the histories of the job's nodes that share the state directory, by host, that of `place` first; `own` is that one."""
    from supervisor.journal.joint import of_one_job  # noqa: PLC0415  not for --help

    found = {place.node: own}
    if own.meetings or any(one.members for incident in own.incidents for one in incident.rounds):
        for other in other_nodes(root, place):
            try:
                found[other.node], _ = history_of(other)
            except SuperviseError as error:
                stdio.say(f"{other.node}: {error.message}")
    hosts = of_one_job(place.node, found)
    return {host: history for host, history in found.items() if host in hosts}


def goes_on(place: JobFiles) -> bool:
    """Whether the job may still write."""
    history, alive = history_of(place)
    return alive is not False and history.end is None


def live_beats(history: History) -> tuple[RankHeartbeat, ...]:
    """Return the heartbeats of the current attempt; none where they cannot be read."""
    if history.run is None or not history.run.scratch:
        return ()
    from supervisor.observe.ranks import heartbeats  # noqa: PLC0415 (only while the job runs)

    return heartbeats.read(identity.attempt_dir(history.run.scratch, history.attempt) / "heartbeat")


def progress_of(history: History, beats: Sequence[RankHeartbeat]) -> Progress:
    """Return the step of the rank that is furthest behind, and its phase; what the journal has where there is no heartbeat."""
    if not beats:
        return history.progress
    slowest = min(beats, key=lambda b: b.steps)
    known = [b.step for b in beats if b.step is not None]
    if known:
        return Progress(min(known), relative=False, phase=slowest.phase)
    return Progress(history.progress.step, history.progress.relative, slowest.phase)


def show_problems(history: History) -> None:
    """Show, on stderr, what is wrong with the journal."""
    for problem in history.problems[:MOST_LISTED]:
        stdio.say(f"journal: {problem}")
