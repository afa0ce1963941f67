"""Ends the job's processes that we inherit as a subreaper when a guardian dies.

Descent from us proves that a process is the job's only where no other process can be among our children. There are two exceptions: we had
children before we were `supervise` (a shell that execs us), or we are the first process of a pid namespace, which inherits every orphan.
In these cases a child counts as the job's if it was seen below the guardian, or if it started after the guardian with the job's cookie in
its environment. Everything below such a child is the job's too. `seen` may be called from any thread.

Whatever in this process starts a child must do so by `started`. Every other ended child counts as adopted and is reaped here, so that its
starter would read exit status 0.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, AnyStr

from supervisor.core.values import Struct
from supervisor.guardian import killing, process_tree

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable

COOKIE = "SUPERVISE_JOB_COOKIE"

# one list for the process, as the kernel keeps one of its children: whoever waits for any of them must know those that have an owner
_started: list[subprocess.Popen[Any]] = []
_starting = threading.Lock()


class LeftProcess(Struct, frozen=True):
    """A process that was not ended, and why. unkilled: KILL was sent and did not end it (launch/unkilled.py)."""

    pid: int
    why: str
    start_ticks: int = 0
    unkilled: bool = False


class Orphans:
    """Tells the job's processes from others' among our children. Make it before the first child."""

    def __init__(self, cookie: str, *, first_process: bool | None = None) -> None:
        """Remember the children that are there already. first_process: whether we are process 1; None: as the kernel reports."""
        self._me = os.getpid()
        self._cookie = f"{COOKIE}={cookie}".encode()
        self._before = {child.key for child in self._children(process_tree.snapshot())}
        self._tree_is_proof = not self._before and not (self._me == 1 if first_process is None else first_process)
        own = process_tree.read(self._me)
        self._since = own.start_ticks if own else 0
        self._seen: set[tuple[int, int]] = set()

    def seen(self, processes: Iterable[process_tree.ProcessStat]) -> None:
        """These descended from a living guardian, or from what did."""
        self._seen.update(process.key for process in processes)

    def strangers(self, processes: dict[int, process_tree.ProcessStat]) -> set[int]:
        """Select, among our children, those that are not proven to be the job's; what descends from the others is remembered.

        What we started ourselves, as the mirror's process, has its own owner.
        """
        with _starting:
            owned = {process.pid for process in _started if process.poll() is None}
        if self._tree_is_proof:
            return owned
        found = {child.pid for child in self._children(processes) if child.pid in owned or not self._is_ours(child)}
        self.seen(process_tree.below(self._me, processes, found))
        return found

    def end(self, grace_s: float, signum: int = signal.SIGTERM) -> tuple[LeftProcess, ...]:
        """End what is the job's among all that descends from this process: the guardian has died.

        Blocks at most grace_s + 3 s; returns what could not or should not be ended.
        """
        ending = killing.TreeTermination(self._me, signum, grace_s)
        while not ending.tick(time.monotonic(), self.strangers):
            time.sleep(0.02)
        collect_zombies()
        return left_by(ending)

    def _children(self, processes: dict[int, process_tree.ProcessStat]) -> list[process_tree.ProcessStat]:
        return [process for process in processes.values() if process.ppid == self._me]

    def _is_ours(self, child: process_tree.ProcessStat) -> bool:
        if child.key in self._before or child.start_ticks < self._since:
            return False
        environment = answered_environment(child.pid) if child.key not in self._seen else None
        return child.key in self._seen or (isinstance(environment, list) and self._cookie in environment)


def answered_environment(pid: int, within_s: float = killing.ANSWERS_S) -> list[bytes] | OSError | None:
    """Return the NAME=value pairs of a process, or why they cannot be read; None if it does not answer in time (guardian/killing.py)."""
    answer: list[list[bytes] | OSError] = []

    def ask() -> None:
        try:
            answer.append(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        except OSError as error:
            answer.append(error)

    thread = threading.Thread(target=ask, name="environment", daemon=True)
    thread.start()
    thread.join(within_s)
    return answer[0] if answer else None


def left_by(ending: killing.TreeTermination) -> tuple[LeftProcess, ...]:
    """Return what an ending that is over did not end."""
    return tuple(LeftProcess(one.pid, why, one.start_ticks, ending.killed(one)) for one, why in ending.left)


def started(start: Callable[[], subprocess.Popen[AnyStr]]) -> subprocess.Popen[AnyStr]:
    """Start a child whose end its owner waits for."""
    with _starting:
        process = start()
        _started.append(process)
    return process


def collect_zombies(processes: dict[int, process_tree.ProcessStat] | None = None) -> None:
    """Collect the ended children that were adopted. The owner of a process that we started collects it.

    processes: as a snapshot just showed them; None: they are read here.
    """
    processes = process_tree.snapshot() if processes is None else processes
    with _starting:
        _started[:] = [process for process in _started if process.poll() is None]
        owned = {process.pid for process in _started}
        for process in processes.values():
            if process.ppid == os.getpid() and process.pid not in owned and not process.alive:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)
