"""Finds whom a soak could disturb: another job of supervise on this node, and other processes on its GPUs."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import Ask
from health.probing.runner import Runner
from supervisor.errors import ExitCode, SuperviseError
from supervisor.launch.guardian_client import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Readings

_PROC: Final = Path("/proc")
#: A person waits.
_NVML_S: Final = 8.0


def refuse(proc: Path = _PROC, gpus: Readings | None = None) -> None:
    """Raise SuperviseError (64) if another job of supervise runs on this node, or other processes hold memory of its GPUs.

    proc: the processes; a container sees its own alone. gpus: what NVML says; None: ask it.
    """
    jobs = list(guardians(proc))
    if jobs:
        raise SuperviseError(
            f"another job of supervise runs on this node (process {jobs[0]}), and the soak's faults could cost it time",
            hint="Run the soak on a node of its own, or when that job has ended.",
            exit_code=ExitCode.USAGE,
        )
    if gpus is None:
        with closing(Runner()) as runner:
            gpus = runner.sweep(("nvml",), Ask(deadline_s=_NVML_S))
    holders = gpu_holders(gpus)
    if holders:
        raise SuperviseError(
            f"other processes use the GPUs of this node ({', '.join(holders[:3])}), and the soak's faults could cost them time",
            hint="Run the soak on a node of its own, or give the allocation to nobody else while it runs.",
            exit_code=ExitCode.USAGE,
        )


def guardians(proc: Path = _PROC) -> Iterator[int]:
    """Yield the pids of the guardians: each running job of supervise has one."""
    for entry in sorted(proc.glob("[0-9]*"), key=lambda entry: int(entry.name)):
        if is_guardian(int(entry.name), proc):
            yield int(entry.name)


def is_guardian(pid: int, proc: Path = _PROC) -> bool:
    """Return whether a process is a guardian of supervise, of whichever installation; False for a zombie."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"--link-fd" in words and any(Path(os.fsdecode(word)).parts[-2:] == PROGRAM.parts[-2:] for word in words[1:])


def gpu_holders(gpus: Readings) -> list[str]:
    """Return the processes that hold memory of a GPU, each in words."""
    holders: dict[int, str] = {}
    for reading in gpus.of("gpu.processes"):
        for row in reading.value if isinstance(reading.value, list) else ():
            if isinstance(row, dict):
                pid = int(str(row.get("pid")))
                holders[pid] = f"{row.get('command') or 'a process that is hidden from here'}, pid {pid}"
    return list(holders.values())
