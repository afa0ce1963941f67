"""`supervise stop`: asks the supervisor of a job to stop, waits for its end, and reports what became of the job.

It sends TERM, as `kill`, systemd and Slurm do: core/stop.py is the only road of a stop (docs/guides/preemption.md). A supervisor that
systemd started is left to `systemctl stop`: after exit code 75, systemd would start it again.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, setting_options
from supervisor.cli.jobs.job_files import (
    JobFiles,
    find_job,
    live_beats,
    other_nodes,
    places_in,
    progress_of,
    state_root,
    view_of,
)
from supervisor.cli.progress import SECONDS, progress
from supervisor.core.model import Phase
from supervisor.core.state import Stage
from supervisor.errors import ExitCode, SuperviseError
from supervisor.guardian import ownership, process_tree
from supervisor.job import identity
from supervisor.report.command_line import start_again
from supervisor.report.wording import step_text
from supervisor.run import lock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from supervisor.config.settings import Settings
    from supervisor.run.lock import LockRecord
    from supervisor.view.job_view import JobView

#: As TimeoutStopSec in supervisor/cli/systemd/units/supervise@.service.
_WAIT_S: Final = 120.0
_POLL_S: Final = 0.2
_NOT_ENDED: Final = 1


@click.command()
@setting_options(*JOB)
@click.option(
    "--wait-s", type=click.FloatRange(min=0), default=_WAIT_S, metavar="S", help=f"Wait at most S seconds (default: {_WAIT_S:.0f})."
)
@click.option("--hurry", is_flag=True, help="Shorten a stop that is under way: the ranks are killed in 2 s; once more, now.")
def command(invocation: Invocation, *, wait_s: float, hurry: bool) -> int:
    """Without --job it stops the one job that runs here. A script that calls worker.should_save saves first.

    The exit code is 0 if the job does not run any more, or did not run. It is 1 if the job did not end in time; the stop continues then.
    """
    settings = invocation.settings_to_read_with()
    return stop(settings, invocation.job(settings), wait_s=wait_s, hurry=hurry)


def stop(settings: Settings, job: str | None, *, wait_s: float = _WAIT_S, hurry: bool = False) -> int:
    """Stop a job and report what became of it. Returns 0 if it does not run any more, else 1."""
    root = state_root(settings)
    place, holder = _job_and_holder(root, job)
    if place is None:
        stdio.write(sys.stdout, f"no job runs here: {root}")
        return 0
    if holder is None:
        stdio.write(sys.stdout, f"job {place.job} does not run: {_end(place)}")
        return 0
    pid = holder.process.pid
    view, _ = view_of(place)
    under_way = view.stage == Stage.STOPPING
    if not under_way:
        _refuse_service(place.job, pid)
    if hurry or not under_way:
        _send(place.job, holder)
    stdio.say(f"job {place.job}: {'its stop is under way' if under_way else 'asked to stop'} (pid {pid}); waiting up to {wait_s:g} s")
    if not _wait_ended(place, holder, wait_s):
        hint = "The stop continues: `supervise stop` waits again, `supervise stop --hurry` shortens it"
        stdio.say(f"job {place.job}: not ended after {wait_s:g} s: {_position(view_of(place)[0])}. {hint}.")
        return _NOT_ENDED
    stdio.write(sys.stdout, f"job {place.job}: {_end(place)}")
    view, _ = view_of(place)
    if view.run is not None and view.end is not None and view.end.exit_code:
        again = start_again(view.run.invocation, view.run.cwd)
        stdio.write(sys.stdout, f"start it again: {again.text}")
        if again.variables:
            stdio.write(sys.stdout, f"set {', '.join(again.variables)} first: secrets are not shown")
    for node in _other_nodes(root, place):
        stdio.say(f"job {place.job} may run on {node} too; stop it there")
    return 0


def _job_and_holder(root: Path, job: str | None) -> tuple[JobFiles | None, LockRecord | None]:
    """Return the job that is meant and the live holder of its lock, None if it does not run; no job if none is named and none runs.

    Raises SuperviseError (64) for an unknown job, one that runs elsewhere, and where none is named and several run.
    """
    if job is not None:
        place = find_job(root, job)
        return place, _holder(place)
    here = [place for place in places_in(root) if place.node == identity.node_name()]
    running = [(place, holder) for place in here if (holder := _holders(place)[0]) is not None]
    if len(running) > 1:
        names = ", ".join(place.job for place, _ in running)
        raise SuperviseError(f"several jobs run here: {names}", hint="Name one of them with --job.", exit_code=ExitCode.USAGE)
    return running[0] if running else (None, None)


def _holder(place: JobFiles) -> LockRecord | None:
    """Return who holds the lock of a job, None if nobody does. Raises SuperviseError (64) if that is not to be seen from here."""
    holder, elsewhere = _holders(place)
    if elsewhere is not None:
        process = elsewhere.process
        where = process.hostname if process.hostname != identity.node_name() else "another container of this node"
        raise SuperviseError(
            f"job {place.job} cannot be stopped from here: pid {process.pid} on {where} supervises it",
            hint="Run the same command there.",
            exit_code=ExitCode.USAGE,
        )
    return holder


def _holders(place: JobFiles) -> tuple[LockRecord | None, LockRecord | None]:
    """Return the holder of the lock if it lives here, and the holder that cannot be seen from here. Raises SuperviseError."""
    record = lock.holder(place.directory / "lock")
    alive = False if record is None else lock.is_alive(record)
    return (record if alive else None), (record if alive is None else None)


def _send(job: str, holder: LockRecord) -> None:
    """Send TERM to exactly this process; one that is gone has stopped. Raises SuperviseError if it is somebody else's."""
    process = process_tree.read(holder.process.pid)
    if process is None or process.start_ticks != holder.process.start_ticks or ownership.send(process, signal.SIGTERM):
        return
    if process_tree.read(holder.process.pid) is not None and lock.is_alive(holder):
        raise SuperviseError(
            f"job {job} cannot be stopped: process {holder.process.pid}: Operation not permitted",
            hint="Run the same command as the user that runs the job.",
        )


def _refuse_service(job: str, pid: int) -> None:
    """Raise SuperviseError (64) for a service: systemd starts it again after 75."""
    unit = service_of(pid)
    if unit:
        hint = f"Run `systemctl stop {unit}`: it stops the job in the same way."
        raise SuperviseError(f"job {job} is a service: systemd would start it again", hint=hint, exit_code=ExitCode.USAGE)


def service_of(pid: int) -> str:
    """Return the name for `systemctl stop` of the service with this main process; "" for another process, or one that cannot be read."""
    import psutil  # noqa: PLC0415  for this command only

    try:
        environ = psutil.Process(pid).environ()
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:  # noqa: PTH123  one line
            path = file.read().strip().rpartition(":")[2]
    except (OSError, psutil.Error):
        return ""
    return unit_of(pid, environ, path)


def unit_of(pid: int, environ: Mapping[str, str], cgroup: str) -> str:
    """Return the unit whose main process `pid` is, by its environment and its control group; "" for another process."""
    unit = cgroup.rpartition("/")[2]
    if environ.get("SYSTEMD_EXEC_PID") != str(pid) or not unit.endswith(".service"):
        return ""
    return f"--user {unit}" if "/user@" in cgroup else unit


def _wait_ended(place: JobFiles, holder: LockRecord, wait_s: float) -> bool:
    """Wait for the supervisor's end, and show meanwhile how far the stop is. False: the time is over."""
    began, never = time.monotonic(), threading.Event()
    with progress(place.job) as bar:
        while lock.is_alive(holder):
            waited_s = time.monotonic() - began
            if waited_s >= wait_s:
                return False
            bar.at(f"{place.job}: {_position(view_of(place)[0])}", waited_s, wait_s, SECONDS)
            never.wait(_POLL_S)
    return True


def _position(view: JobView) -> str:
    position = progress_of(view, live_beats(view))
    step = "" if position.step is None else f", {step_text(position.step, relative=position.relative)}"
    phase = "" if position.phase is Phase.UNKNOWN else f", phase {position.phase.value}"
    return f"{view.stage}{step}{phase}"


def _end(place: JobFiles) -> str:
    """Return what became of the job's last run: its own last line, and its exit code."""
    view, _ = view_of(place)
    end = view.end
    if view.run is None:
        return "it never began"
    if end is None:
        return "its supervisor ended without a record; the next start continues the run"
    code = f"exit code {end.exit_code}"
    next_start = ", the next start continues the run" if end.exit_code == ExitCode.REQUEUE else ""
    return f"{view.summary or end.reason or 'ended'} ({code}{next_start})"


def _other_nodes(root: Path, place: JobFiles) -> Sequence[str]:
    return [other.node for other in other_nodes(root, place) if view_of(other)[0].end is None]
