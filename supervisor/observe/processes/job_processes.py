"""Knows the processes of the job, and their ranks: turns a pid in the kernel's log into a rank.

It knows the ranks, what descended from the guardian every few seconds, and asks /proc: a process that the kernel is just killing still
has its parents there. Other pids are strangers. In a pid namespace of our own every pid is unknown, because the kernel's log names the
host's pids. Shared by threads: the knowledge of one attempt is replaced as a whole.
"""

from __future__ import annotations

import enum
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.core.values import Struct
from supervisor.guardian import process_tree
from supervisor.observe.hangs import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.core.model import RankInfo

#: The first pid namespace has this inode number on every machine (PROC_PID_INIT_INO, include/linux/proc_ns.h).
FIRST_NAMESPACE = "pid:[4026531836]"
DEEPEST = 64
MOST_KNOWN = 20_000

_CONTAINER = re.compile(r"[0-9a-f]{64}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}")


class ProcessOwner(enum.Enum):
    """To whom a process belongs: to this job, to another, or unknown."""

    JOB = enum.auto()
    OTHER = enum.auto()
    UNKNOWN = enum.auto()


class _AttemptProcesses(Struct, frozen=True):
    """The ranks of one attempt by pid, and whose each process was that descended from them."""

    ranks: Mapping[int, int]
    known: Mapping[int, int | None]
    living: tuple[int, ...] = ()  # those of them that the newest look saw


class JobProcesses:
    """The processes of one job. `root`: the process from which all of them descend, besides the guardian."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._attempt = _AttemptProcesses({}, {})
        self._lock = threading.Lock()  # of who replaces it; who reads takes it once
        # neither namespaces nor control groups are among what psutil reads
        self._comparable = procfs.link("/proc/self/ns/pid") == FIRST_NAMESPACE
        self._containers = frozenset(_CONTAINER.findall(_head("/proc/self/cgroup") + _head("/proc/self/mountinfo")))

    def set_ranks(self, ranks: Iterable[RankInfo]) -> None:
        """Take the ranks of a new attempt, none where they are not known yet: what an earlier one had is gone, and pids come again."""
        by_pid = {info.pid: info.rank for info in ranks}
        with self._lock:
            if by_pid != self._attempt.ranks or not by_pid:
                self._attempt = _AttemptProcesses(by_pid, {})

    def add_descendants(self, processes: Iterable[process_tree.ProcessStat]) -> None:
        """Take the descendants of the guardian now. Earlier ones are remembered: they may have died since."""
        attempt, parents = self._attempt, {process.pid: process.ppid for process in processes}
        known = dict(attempt.known) if len(attempt.known) < MOST_KNOWN else {}
        for pid in parents:
            at = pid
            for _ in range(DEEPEST):
                if at in attempt.ranks or at not in parents:
                    break
                at = parents[at]
            known[pid] = attempt.ranks.get(at)
        with self._lock:
            if self._attempt is attempt:  # else another has begun meanwhile, and these pids are not of it
                self._attempt = _AttemptProcesses(attempt.ranks, known, tuple(parents))

    def whose(self, pid: int) -> tuple[ProcessOwner, int | None]:
        """Return whose process this is, by the pid in the kernel's log, and of which rank."""
        if not self._comparable:
            return ProcessOwner.UNKNOWN, None
        attempt, at = self._attempt, pid
        for _ in range(DEEPEST):
            if at in attempt.ranks:
                return ProcessOwner.JOB, attempt.ranks[at]
            if at in attempt.known:
                return ProcessOwner.JOB, attempt.known[at]
            if at == self._root:
                return ProcessOwner.JOB, None
            process = process_tree.read(at)
            if process is None or process.ppid <= 1:
                break
            at = process.ppid
        return ProcessOwner.OTHER, None

    @property
    def with_children(self) -> frozenset[int | None]:
        """The ranks from which another process was seen to descend."""
        attempt = self._attempt
        return frozenset(rank for pid, rank in attempt.known.items() if pid not in attempt.ranks)

    def below_ranks(self) -> dict[int, list[int]]:
        """Return the pids that descended from each rank a few seconds ago."""
        attempt = self._attempt
        below: dict[int, list[int]] = {}
        for pid in attempt.living:
            if (rank := attempt.known.get(pid)) is not None and pid not in attempt.ranks:
                below.setdefault(rank, []).append(pid)
        return below

    def owner_by_cgroup(self, text: str) -> ProcessOwner:
        """Return whether a record is about our container, by the ids in the paths of cgroups that it names."""
        named = _CONTAINER.findall(text)
        if not named or not self._containers:
            return ProcessOwner.UNKNOWN
        return ProcessOwner.JOB if self._containers.intersection(named) else ProcessOwner.OTHER


def _head(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
