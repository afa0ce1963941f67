"""Processes that are dead and not gone (zombies), and those that are deaf in the kernel (state D), with their age.

Yields, of `host`: `processes.zombies` and `processes.stuck`, lists of tables (pid, parent, command, age_s since its start, since_s, wchan),
the oldest MOST first, and `processes.counts` (all, zombies, stuck). A disk makes processes wait in state D all the time, so that one
is treated as stuck only if it did not run between two reads, LOOK_S apart, and ALONE_S where nobody reads again (ask.lasting). The kernel
does not record for how long: `since_s` is since a read first found it so, which a session remembers, of zombies too. Threads of the
kernel's own are left out: some rest in state D for ever.

psutil reads all but two things: `wchan`, which it does not have, and the command's name, for which it also reads the command line; the
kernel may not answer that for a process in state D.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psutil

from health.model import HOST, Json, Reading
from health.probes import psutil_root, system_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "processes"
MOST: Final = 20
LOOK_S: Final = 0.2
ALONE_S: Final = 1.0
#: The parent of the kernel's own threads.
_KERNEL: Final = 2


@dataclass(frozen=True, slots=True)
class _ProcessState:
    """One process. started: Unix seconds. switches: what moves whenever one in state D runs."""

    pid: int
    parent: int
    status: str
    started: float
    switches: tuple[float, ...]


def read(ask: Ask) -> Iterator[Reading]:
    """Yield what two reads show."""
    return Processes().read(ask)


def session() -> Processes:
    """Return what remembers since when each has been stuck or dead."""
    return Processes()


class Processes:
    """Reads, and remembers: first seen so at, by process."""

    def __init__(self) -> None:
        self._since: dict[tuple[int, float, tuple[float, ...]], float] = {}

    def read(self, ask: Ask) -> Iterator[Reading]:
        """Yield the present readings."""
        psutil_root.use(ask)
        proc = ask.at("/proc")
        try:
            statuses = [(process.pid, status) for process in psutil.process_iter() if (status := _status(process))]
        except OSError as error:
            yield system_files.unread(NAME, HOST, "processes.counts", error, proc)
            return
        zombies = _states(pid for pid, status in statuses if status == psutil.STATUS_ZOMBIE)
        stuck = [
            process
            for process in _states(pid for pid, status in statuses if status == psutil.STATUS_DISK_SLEEP)
            if process.parent != _KERNEL
        ]
        if stuck:
            time.sleep(LOOK_S)
            stuck = _still(stuck)
        if stuck and not ask.lasting:
            time.sleep(ALONE_S - LOOK_S)
            stuck = _still(stuck)
        now, wall = time.monotonic(), time.time()
        self._since = {_key(process): self._since.get(_key(process), now) for process in (*stuck, *zombies)}
        yield Reading(NAME, HOST, "processes.counts", {"all": len(statuses), "zombies": len(zombies), "stuck": len(stuck)})
        for name, some in (("processes.zombies", zombies), ("processes.stuck", stuck)):
            rows: list[Json] = []
            for process in sorted(some, key=lambda process: process.started)[:MOST]:
                row: dict[str, Json] = {
                    "pid": process.pid,
                    "parent": process.parent,
                    "command": system_files.text(f"{proc}/{process.pid}/comm"),
                    "age_s": round(max(0.0, wall - process.started), 1),
                    "since_s": round(now - self._since.get(_key(process), now), 1),
                    "wchan": system_files.text(f"{proc}/{process.pid}/wchan").strip("0"),
                }
                rows.append(row)
            yield Reading(NAME, HOST, name, rows)

    def close(self) -> None:
        """Nothing is open."""


def _status(process: psutil.Process) -> str:
    """Return a process's status, "" where it has gone."""
    try:
        return str(process.status())
    except (psutil.Error, OSError):
        return ""


def _states(pids: Iterator[int]) -> list[_ProcessState]:
    """Return the facts of each process that is still there; read anew, because psutil keeps the start of a process that it listed."""
    states = []
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError):  # it is gone
            process = psutil.Process(pid)
            with process.oneshot():
                states.append(_ProcessState(pid, process.ppid(), process.status(), process.create_time(), _switches(process)))
    return states


def _still(stuck: list[_ProcessState]) -> list[_ProcessState]:
    """Return those that did not run meanwhile."""
    before = {_key(process) for process in stuck}
    again = _states(process.pid for process in stuck)
    return [process for process in again if process.status == psutil.STATUS_DISK_SLEEP and _key(process) in before]


def _switches(process: psutil.Process) -> tuple[float, ...]:
    """Return the counts that move when a process in state D runs; user and system time too, where a kernel counts no switches."""
    if process.status() != psutil.STATUS_DISK_SLEEP:
        return ()
    times = process.cpu_times()
    with contextlib.suppress(NotImplementedError):
        return (times.user, times.system, *process.num_ctx_switches())
    return (times.user, times.system)


def _key(process: _ProcessState) -> tuple[int, float, tuple[float, ...]]:
    return process.pid, process.started, process.switches
