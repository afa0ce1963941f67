"""Records the processes of a job, and ends those that an earlier supervisor left behind.

Needed only where supervisor *and* guardian were killed in the same instant, because descent is lost then. A process is ended if pid, start
time, boot id and the job's cookie in its environment all agree, or if it descends from such a process. The cookie alone proves nothing:
terminal multiplexers, uploaders and submitted jobs inherit it. A process with an incomplete proof is reported and left.

The record is append-only, one JSON line for each process; a torn last line is ignored.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

from checkpointing.io import durable
from supervisor.core.values import Struct, asdict
from supervisor.guardian import killing, process_tree
from supervisor.job.identity import boot_id
from supervisor.launch import orphans
from supervisor.launch.orphans import COOKIE, LeftProcess

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: The role of a process that KILL was sent to and did not end: it is waited for, and proven already.
UNKILLED = "unkilled"
#: How long the environment of one process is waited for: on a machine under load that is no sign of uninterruptible sleep.
ENVIRONMENT_S = 5.0


class ProcessRecord(Struct, frozen=True):
    """A process that we started. `role` is a word for people, which process of ours it was; `start_ticks` is field 22 of its stat."""

    pid: int
    start_ticks: int
    boot_id: str
    cookie: str
    role: str


class SweepResult(Struct, frozen=True):
    """`ended`: processes that were proven ours and are gone now. `left`: processes without proof, or that KILL did not end, and why.

    A process whose environment does not answer counts as one that KILL did not end: that happens in uninterruptible sleep only.
    """

    ended: tuple[int, ...]
    left: tuple[LeftProcess, ...]


def record_process(file: Path, pid: int, cookie: str, role: str) -> None:
    """Add a living process to the record; one that is gone already needs none. Raises OSError."""
    process = process_tree.read(pid)
    if process is None:
        return
    line = json.dumps(asdict(ProcessRecord(pid, process.start_ticks, boot_id(), cookie, role))) + "\n"
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def read_records(file: Path) -> tuple[ProcessRecord, ...]:
    """Read the record; a missing file is an empty one, a line that is torn or of another version is skipped."""
    try:
        text = durable.read(str(file)).decode("utf-8", "replace")
    except FileNotFoundError:
        return ()
    records = []
    for line in text.splitlines():
        try:
            records.append(ProcessRecord(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return tuple(records)


def sweep_records(records: Iterable[ProcessRecord], grace_s: float = 1.0) -> SweepResult:
    """End what is proven ours and what descends from it; name and leave the rest.

    Blocks at most grace_s + 3 s, and ENVIRONMENT_S for each process that does not answer.
    """
    this_boot = boot_id()
    proven: list[process_tree.ProcessStat] = []
    left: list[LeftProcess] = []
    for record in {(record.pid, record.start_ticks): record for record in records}.values():
        process = process_tree.read(record.pid)
        if record.boot_id != this_boot or process is None or process.start_ticks != record.start_ticks or not process.alive:
            continue  # it has ended; whoever has the pid now is a stranger
        if record.role == UNKILLED:
            left.append(LeftProcess(record.pid, f"still there after KILL, state {process.state}", record.start_ticks, unkilled=True))
            continue
        environment = orphans.answered_environment(record.pid, ENVIRONMENT_S)
        doubt = _doubt(record, environment)
        if doubt:
            left.append(LeftProcess(record.pid, doubt, record.start_ticks, unkilled=environment is None))
        else:
            proven.append(process)
    ended: set[int] = set()
    endings = [
        killing.TreeTermination(process.pid, signal.SIGTERM, grace_s, top=process) for process in proven if process.pid != os.getpid()
    ]
    while endings:
        now = time.monotonic()
        for ending in [ending for ending in endings if ending.tick(now)]:
            endings.remove(ending)
            ended |= ending.signalled
            left += orphans.left_by(ending)
        time.sleep(0.02 if endings else 0)
    return SweepResult(tuple(sorted(ended - {one.pid for one in left})), tuple(left))


def _doubt(record: ProcessRecord, environment: list[bytes] | OSError | None) -> str:
    """Return the missing part of the proof; "" if it is complete."""
    if environment is None or isinstance(environment, OSError):
        why = "it does not answer" if environment is None else environment.strerror
        return f"pid and start time are those of our {record.role}, but its environment cannot be read: {why}"
    if killing.DETACH in environment:
        return "SUPERVISE_JOB_DETACH=1 is in its environment"
    if f"{COOKIE}={record.cookie}".encode() not in environment:
        return f"pid and start time are those of our {record.role}, but the job's cookie is not in its environment"
    return ""
