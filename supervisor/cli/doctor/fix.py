"""`supervise doctor --fix`: what jobs of ours left behind on this node, cleared away where that is proven.

In: the settings (for the state directory). Out: a line for each thing that was done or left, and why. For each job of that directory
whose supervisor on this node is gone: its processes that are proven ours are ended (launch/previous_processes.py has the proof), its
directory in
/dev/shm is removed, its stale lock is given up. The job's own lock is held meanwhile, so that no supervisor starts amid it; a job whose
holder lives, or cannot be seen from here, is passed over. Nothing of anybody else is touched. Nothing is kept.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from supervisor.errors import SuperviseError
from supervisor.job import identity
from supervisor.launch import previous_processes
from supervisor.run import lock
from supervisor.run.factory import PROCESSES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from supervisor.config.settings import Settings


def fix(settings: Settings, shm: Path = identity.SHM) -> Iterator[str]:
    """Clear away, job by job, and yield what was done."""
    root = identity.working_directory() / settings.job.state_dir
    node = identity.node_name()
    done = False
    for state in sorted(root.glob(f"*/nodes/{node}")):
        for line in _job(state, state.parents[1].name, shm):
            done = True
            yield line
    if not done:
        yield f"nothing to clear away: no job of {root} left anything on this node"


def _job(state: Path, name: str, shm: Path) -> Iterator[str]:
    try:
        record = lock.holder(state / "lock")
    except SuperviseError as error:
        yield f"{name}: passed over: {error.message}"
        return
    if record is not None and lock.is_alive(record) is not False:
        yield f"{name}: passed over: its supervisor {'runs' if lock.is_alive(record) else 'may run elsewhere'}"
        return
    scratch = identity.job_dir_path(state, shm)
    if record is None and not scratch.exists():
        return
    try:
        held = lock.acquire(state / "lock", job=name)
    except SuperviseError as error:
        yield f"{name}: passed over: {error.message}"
        return
    try:
        yield from _cleared(scratch, name)
        if record is not None:
            yield f"{name}: a stale lock is gone (of pid {record.process.pid})"
    finally:
        with contextlib.suppress(OSError):
            held.release()


def _cleared(scratch: Path, name: str) -> Iterator[str]:
    try:
        swept = previous_processes.sweep_records(previous_processes.read_records(scratch / PROCESSES))
    except OSError as error:
        yield f"{name}: {scratch}: {error.strerror or error}"
        return
    if swept.ended:
        yield f"{name}: ended processes that were left: {', '.join(map(str, swept.ended))}"
    for left in swept.left:
        yield f"{name}: left alone: process {left.pid}: {left.why}"
    if swept.left or not scratch.exists():
        return  # what goes on may still write there
    try:
        shutil.rmtree(scratch)
    except OSError as error:
        yield f"{name}: {scratch} cannot be removed: {error.strerror or error}"
    else:
        yield f"{name}: removed {scratch}"
