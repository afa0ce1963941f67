"""`supervise doctor --fix`: clears away what our jobs left behind on this node, where that is proven.

It visits each job of the state directory whose supervisor on this node is gone. It ends the processes that are proven to be the job's
(guardian/ownership.py has the proof), removes the job's directory in /dev/shm, and gives up its stale lock. Meanwhile it holds the
job's own lock, so that no supervisor starts. It skips a job whose holder lives, or cannot be seen from here.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from supervisor.errors import SuperviseError
from supervisor.guardian import ownership
from supervisor.job import identity
from supervisor.run import lock
from supervisor.run.factory import PROCESSES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from supervisor.config.settings import Settings


def fix(settings: Settings, shm: Path = identity.SHM) -> Iterator[str]:
    """Clear away, job by job, and yield the actions."""
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
        cleared = ownership.end_recorded(ownership.read_records(str(scratch / PROCESSES)), identity.boot_id())
    except OSError as error:
        yield f"{name}: {scratch}: {error.strerror or error}"
        return
    if cleared.ended:
        yield f"{name}: ended processes that were left: {', '.join(map(str, cleared.ended))}"
    for left in cleared.left:
        yield f"{name}: left alone: process {left.pid}: {left.why}"
    if cleared.left or not scratch.exists():
        return  # what continues may still write there
    try:
        shutil.rmtree(scratch)
    except OSError as error:
        yield f"{name}: {scratch} cannot be removed: {error.strerror or error}"
    else:
        yield f"{name}: removed {scratch}"
