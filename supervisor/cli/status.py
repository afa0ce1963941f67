"""`supervise status`, `why` and `logs`: what they print comes from a job's files, so they work when the supervisor is gone.

In: the settings (for the state directory), a job's name or None. Out: text or JSON on stdout, the exit code. While the supervisor lives,
the heartbeats in memory give the step of this moment, and the lock says that it lives. What can fail: no job, no such incident
(SuperviseError, 64), a newer journal (78). Nothing is written and no lock is taken. Imports neither structlog nor rich.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpointing.manifest.documents import Manifests
from supervisor.checkpoints import numerics
from supervisor.cli import logs as cli_logs
from supervisor.cli import stdio
from supervisor.core.model import Progress
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.journal.file import earlier
from supervisor.journal.reader import History, read_earlier, read_history
from supervisor.report import card
from supervisor.report.card import Status
from supervisor.report.text import clean
from supervisor.run import lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisor.config.settings import Settings
    from supervisor.journal.reader import Incident

_LISTED = 10


@dataclass(frozen=True, slots=True)
class Place:
    """A job's files on one node."""

    job: str
    node: str
    directory: Path

    @property
    def journal(self) -> Path:
        """The journal, there or not."""
        return self.directory / "journal.jsonl"


def status(settings: Settings, job: str | None, as_json: bool) -> int:  # noqa: FBT001 (the command's own flag)
    """Print where the job stands. Returns 0."""
    place = find_job(state_root(settings), job)
    seen = status_of(place)
    _print(json.dumps(as_dict(seen), indent=1) if as_json else card.status_text(seen, settings.address(place.job)))
    return 0


def why(settings: Settings, job: str | None, incident: int | None) -> int:
    """Print the six hops of an incident, by default of the last one. Returns 0."""
    place = find_job(state_root(settings), job)
    history, _ = _history(place)
    _tell_problems(history)
    address = settings.address(place.job)
    told: list[int] = []
    for found in _incidents(place, history):
        if incident in (None, found.number):
            break
        told.append(found.number)
    else:
        if incident is None:
            _print(f"job {place.job}: no incident so far; supervise status {address} shows where it stands")
            _print_restored(history)
            return 0
        raise _no_incident(place, incident, told)
    _print(card.why_text(place.job, place.node, found, address, since=history.run.run_id if history.run else ""))
    _print_restored(history)
    return 0


def _print_restored(history: History) -> None:
    if history.restored:
        _print(f"from the mirror, before the first attempt: {clean(history.restored)}")


def _incidents(place: Place, history: History) -> Iterator[Incident]:
    """Yield the job's incidents, the last one first, those of earlier runs whose journals are kept included."""
    yield from reversed(history.incidents)
    for before in _earlier_runs(place):
        yield from reversed(before.incidents)


def _earlier_runs(place: Place) -> Iterator[History]:
    """Yield the job's earlier runs whose journals are kept, the newest first."""
    for path in earlier(place.journal):
        with contextlib.suppress(OSError):  # forgotten meanwhile
            yield read_earlier(path)


def _no_incident(place: Place, number: int, told: Sequence[int]) -> SuperviseError:
    path = place.directory / "incidents" / f"{number:04d}" / "card.txt"
    hint = f"Name one of these: {', '.join(str(n) for n in reversed(told[:_LISTED]))}." if told else "Leave the number out."
    if path.exists():
        hint = f"Its journal is not kept any more; read its card: {path}."
    return SuperviseError(f"no such incident: job {place.job}: {number}", hint=hint, exit_code=ExitCode.USAGE)


def logs(  # noqa: PLR0913 (the command's own options)
    settings: Settings,
    job: str | None,
    rank: int | None,
    attempt: int | None,
    follow: bool,  # noqa: FBT001 (the command's own flag)
    *,
    first_failure: bool = False,
    run: str | None = None,
) -> int:
    """Write an attempt's captured output to stdout: of one rank, of the one that died first, or of all; of the last run or of `run`.

    Returns 0.
    """
    place = find_job(state_root(settings), job)
    history, alive = _history(place)
    older = ""
    if run is not None and (history.run is None or run != history.run.run_id):
        older, alive = run, False
        history = _earlier_run(place, run)
    failed = [i.rounds[-1].attempt for i in history.incidents if history.run and i.run_id == history.run.run_id]
    if attempt is None:
        last = history.attempt or max(cli_logs.attempts(place.directory, older), default=0)
        attempt = failed[-1] if first_failure and failed else last
    if first_failure:
        rank = history.first_deaths.get(attempt)
        if rank is None:
            hint = _where_one_failed(place, settings.address(place.job), attempt, run)
            raise SuperviseError(f"no rank failed: job {place.job}: attempt {attempt}", hint=hint, exit_code=ExitCode.USAGE)
    follows = follow and alive is not False
    return cli_logs.show(place.directory, place.job, attempt, rank, follow=follows, goes_on=lambda: _goes_on(place), run=older)


def _earlier_run(place: Place, run: str) -> History:
    """Return what is known of an earlier run: an empty history where only its output is kept. Raises SuperviseError (64)."""
    found = next((h for h in _earlier_runs(place) if h.run is not None and h.run.run_id == run), None)
    kept = cli_logs.earlier_runs(place.directory)
    if found is None and run not in kept:
        hint = f"Name one of these with --run: {', '.join(kept)}." if kept else "Leave --run out: no output of an earlier run is kept."
        raise SuperviseError(f"no such run: job {place.job}: {run}", hint=hint, exit_code=ExitCode.USAGE)
    return found or History()


def _where_one_failed(place: Place, address: str, attempt: int, run: str | None) -> str:
    """Return the hint for an attempt in which none did: the newest earlier run in which one did, else the attempt's own output."""
    for before in _earlier_runs(place) if run is None else ():
        if before.run is not None and before.first_deaths:
            return f"One did in an earlier run: `supervise logs {address} --run {before.run.run_id} --first-failure`."
    of_run = "" if run is None else f" --run {run}"
    return f"See all of it with `supervise logs {address}{of_run} --attempt {attempt}`."


def state_root(settings: Settings) -> Path:
    """Return the directory of all jobs' files."""
    return identity.working_directory() / settings.job.state_dir


def find_job(root: Path, job: str | None) -> Place:
    """Return the files of `job`, or of the only or most recent one; how many there are is said on stderr then.

    Where several nodes share the directory, it is this node's part, else the most recent. Raises SuperviseError (64) listing what there is.
    """
    places = places_in(root)
    jobs = list(dict.fromkeys(p.job for p in places))
    if job is None and not places:
        hint = "Start one with `supervise -- COMMAND`, or name the place with --state-dir."
        raise SuperviseError(f"no job: {root}: nothing was supervised here", hint=hint, exit_code=ExitCode.USAGE)
    if job is not None and job not in jobs:
        hint = f"Name one of these with --job: {', '.join(jobs[:_LISTED])}." if jobs else "Name the place with --state-dir."
        raise SuperviseError(f"no such job: {root}: {job}", hint=hint, exit_code=ExitCode.USAGE)
    name = jobs[0] if job is None else job
    if job is None and len(jobs) > 1:
        stdio.say(f"{name}: the most recent of {len(jobs)} jobs here; --job NAME shows another")
    mine = [p for p in places if p.job == name]
    here = identity.node_name()
    return next((p for p in mine if p.node == here), mine[0])


def status_of(place: Place) -> Status:
    """Return where the job stands: from its journal, its lock, and while it runs from its heartbeats."""
    history, alive = _history(place)
    _tell_problems(history)
    run, end = history.run, history.end
    progress = _live_progress(history) if history.end is None else history.progress
    decision = next((r.decision for i in reversed(history.incidents) for r in reversed(i.rounds) if r.decision is not None), None)
    incident = history.open_incident
    return Status(
        job=place.job,
        node=place.node,
        run=run.run_id if run else "",
        stage=history.stage,
        attempt=history.attempt,
        step=progress.step,
        step_relative=progress.relative,
        phase=progress.phase.value,
        ranks=history.ranks if alive is not False else (),
        incident=incident.number if incident else None,
        incidents=history.incidents_before + len(history.incidents),
        last_decision=f"{decision.plan.kind.value}: {clean(decision.plan.reason)}" if decision else "",
        supervisor_pid=run.pid if run else 0,
        supervisor_alive=alive,
        state_dir=str(place.directory),
        exit_code=end.exit_code if end else None,
        ended=end is not None,
        numbers=_numbers(place, run.run_id) if run else "",
        restored=clean(history.restored),
        world_size=history.world_size if history.ranks and alive is not False else 0,
    )


def _numbers(place: Place, run: str) -> str:
    newest = numerics.newest_of_run(Manifests(str(place.directory / "checkpoints")).all(), run)
    return "" if newest is None else numerics.report(newest)


def as_dict(seen: Status) -> dict[str, Any]:
    """Return the JSON of `status --json` (docs/status-why-logs.md)."""
    return {
        "job": seen.job,
        "node": seen.node,
        "run": seen.run,
        "stage": seen.stage,
        "attempt": seen.attempt,
        "step": seen.step,
        "step_relative": seen.step_relative,
        "phase": seen.phase,
        "ranks": [{"rank": r.rank, "local_rank": r.local_rank, "pid": r.pid} for r in seen.ranks],
        "world_size": seen.world_size or None,
        "incident": seen.incident,
        "incidents": seen.incidents,
        "last_decision": seen.last_decision or None,
        "supervisor": {"pid": seen.supervisor_pid, "alive": seen.supervisor_alive},
        "state_dir": seen.state_dir,
        "exit_code": seen.exit_code,
        "numbers": seen.numbers or None,
        "restored": seen.restored or None,
    }


def places_in(root: Path) -> list[Place]:
    """Return the files of all jobs on all nodes that share the directory, the last changed first; of one time, this node's."""
    here = identity.node_name()
    try:
        found = [Place(p.parents[2].name, p.parent.name, p.parent) for p in root.glob("*/nodes/*/journal.jsonl")]
    except OSError:
        return []
    return sorted(found, key=lambda place: (_changed_at(place), place.node == here), reverse=True)


def _changed_at(place: Place) -> float:
    try:
        return place.journal.stat().st_mtime
    except OSError:
        return 0.0


def _history(place: Place) -> tuple[History, bool | None]:
    """Return what the journal tells, with the death of its supervisor where nobody else could have written it down."""
    try:
        history = read_history(place.journal)
    except OSError as error:
        hint = "Read it as the user that runs the job, or name another place with --state-dir."
        raise SuperviseError(f"reading the journal: {place.journal}: {error.strerror}", hint=hint) from error
    alive = _alive(place, history)
    if alive is False:
        if history.end is None:
            history.progress = _live_progress(history)  # its ranks' last words outlive it
        history.with_our_death()
    return history, alive


def _alive(place: Place, history: History) -> bool | None:
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


def _goes_on(place: Place) -> bool:
    history, alive = _history(place)
    return alive is not False and history.end is None


def _live_progress(history: History) -> Progress:
    """Return the step of the rank that is furthest behind, and its phase; what the journal has where no heartbeat can be read."""
    if history.run is None or not history.run.scratch:
        return history.progress
    from supervisor.observe import heartbeats  # noqa: PLC0415 (only while the job runs)

    beats = heartbeats.read(Path(history.run.scratch) / f"attempt-{history.attempt:04d}" / "heartbeat")
    if not beats:
        return history.progress
    slowest = min(beats, key=lambda b: b.steps)
    known = [b.step for b in beats if b.step is not None]
    if known:
        return Progress(min(known), relative=False, phase=slowest.phase)
    return Progress(history.progress.step, history.progress.relative, slowest.phase)


def _tell_problems(history: History) -> None:
    for problem in history.problems[:_LISTED]:
        stdio.say(f"journal: {problem}")


def _print(text: str) -> None:
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # `| head` has read enough; without this the interpreter complains again when it flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
