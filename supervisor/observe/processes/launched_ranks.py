"""Finds the ranks that a plain command started by itself, and their ends: Lightning's own children, the ranks of accelerate and of mpirun.

They are not children of the supervisor, so nobody reports their end. A process below the guardian is such a rank if its environment has
LOCAL_RANK and WORLD_SIZE (or mpirun's names for them), and its parent's is not the same rank's: a loader process has its rank's
environment. A pidfd shows when it ends; how it ended is in /proc/PID/stat until its parent has reaped it. One that was reaped at once has
vanished, which may have been an end in order.

The reading of an environment can hang, so a thread of this module does it and nobody waits for it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
import time
from typing import TYPE_CHECKING

from supervisor.core.model import RankExit, RankInfo
from supervisor.core.values import Struct
from supervisor.guardian import process_tree
from supervisor.instrument._supervise_shim import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.guardian.process_tree import ProcessStat

#: Ends of earlier launches, and ranks of all, that are kept.
MOST_EARLIER = 256
#: Between two looks whether an end was seen.
LOOK_S = 0.01
#: In the environment of an interpreter that waits to become the command of the next attempt: it has the command's, and is not a rank.
_STANDBY = "SUPERVISE_JOB_STANDBY"
_RANK = (_STANDBY, "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", *(name for names in layout.MPI_NAMES for name in names))


class VanishedRank(Struct, frozen=True):
    """A rank that is gone, and its parent has reaped it before anybody could see how it ended."""

    rank: int
    pid: int
    at_ns: int


class LaunchedRanks:
    """The ranks that one attempt's command started. Made for one attempt; its thread ends with `stop`."""

    def __init__(self) -> None:
        """Start the thread. Raises RuntimeError where none can be had."""
        self._found: queue.SimpleQueue[Sequence[ProcessStat] | RankInfo] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._open = threading.Lock()
        self._stopped = False
        self._judged: dict[tuple[int, int], dict[str, str]] = {}  # by process: its environment when it was last read
        self._alive: dict[int, RankInfo] = {}  # by pidfd
        self._claimed: set[tuple[int, int]] = set()  # processes that are ranks by their heartbeat
        self._of_claimed: dict[int, RankInfo] = {}  # the same, by pidfd, while they live
        self._newest: dict[int, RankInfo] = {}  # the newest process of each rank; replaced, never changed: the loop reads it
        self.world_size = 0  # by the newest one's environment
        self._ends: dict[int, RankExit | VanishedRank] = {}
        self._claimed_ends: dict[int, RankExit | VanishedRank] = {}
        self.earlier: tuple[RankExit | VanishedRank, ...] = ()  # the same of the launches before the last one
        self.all_ranks: tuple[RankInfo, ...] = ()  # of all launches
        try:
            threading.Thread(target=self._watch, name="rank-ends", daemon=True).start()
        except RuntimeError:
            os.close(self._wake)
            raise

    def add_descendants(self, processes: Iterable[ProcessStat]) -> None:
        """Take the descendants of the guardian. From any thread."""
        self._found.put(tuple(processes))
        self._poke()

    def add_claimed(self, ranks: Iterable[RankInfo]) -> None:
        """Take ranks by their heartbeats, such as a training under `bash run.sh`, whose environment names none. From one thread."""
        for info in ranks:
            if (info.pid, info.start_ticks) not in self._claimed:
                self._claimed.add((info.pid, info.start_ticks))
                self._found.put(info)
                self._poke()

    @property
    def ranks(self) -> tuple[RankInfo, ...]:
        """The newest process of each rank, by rank; it stays when it has ended."""
        newest = self._newest
        return tuple(newest[rank] for rank in sorted(newest))

    @property
    def pids(self) -> dict[int, int]:
        """The pid of the newest process of each rank."""
        return {rank: info.pid for rank, info in self._newest.items()}

    @property
    def ends(self) -> tuple[RankExit | VanishedRank, ...]:
        """How ranks ended so far, well or not. Once a rank is started again, those of the launch before it do not count."""
        return tuple(sorted(self._ends.values(), key=lambda end: end.at_ns))

    @property
    def last_ends(self) -> tuple[RankExit | VanishedRank, ...]:
        """How ranks ended so far, with those that only a heartbeat shows."""
        newest = self._newest
        more = (end for rank, end in self._claimed_ends.items() if rank not in newest)
        return tuple(sorted((*self._ends.values(), *more), key=lambda end: end.at_ns))

    def wait_for_ends(self, deadline_s: float) -> None:
        """Wait until the thread has seen the end of each rank that is gone. From any thread."""
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            alive = (*self._alive.copy().values(), *self._of_claimed.copy().values())
            if all(layout.start_ticks_of(info.pid) == info.start_ticks for info in alive):
                return
            time.sleep(LOOK_S)

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._poke()

    def _poke(self) -> None:
        with self._open:
            if self._wake >= 0:  # its number may be another file's once it is closed
                os.eventfd_write(self._wake, 1)

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        while not self._stopped:
            ready = [fd for fd, _ in poller.poll()]
            for fd in ready:
                if fd != self._wake:
                    self._ended(fd)
                    poller.unregister(fd)
                    os.close(fd)
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                while not self._found.empty():
                    news = self._found.get()
                    for fd in self._of_heartbeat(news) if isinstance(news, RankInfo) else self._new(news):
                        poller.register(fd, select.POLLIN)
        with self._open:
            wake, self._wake = self._wake, -1
        for fd in (*self._alive, *self._of_claimed, wake):
            os.close(fd)

    def _of_heartbeat(self, info: RankInfo) -> Iterable[int]:
        """Yield a pidfd of a rank that is known by its heartbeat."""
        try:
            fd = os.pidfd_open(info.pid)
        except OSError:
            return
        now = process_tree.read(info.pid)
        if now is None or now.start_ticks != info.start_ticks:
            os.close(fd)
            return
        self._of_claimed[fd] = info
        self._claimed_ends.pop(info.rank, None)
        yield fd

    def _new(self, processes: Sequence[ProcessStat]) -> Iterable[int]:
        """Yield a pidfd of each process that is a rank and was none before.

        A process that was forked and has not executed its program yet has its parent's environment: it is judged again once that changes.
        """
        for process in processes:
            own = _environment(process.pid)
            if own == self._judged.get(process.key):
                continue
            self._judged[process.key] = own
            found_rank = _rank_of(own)
            if found_rank is None or own == _environment(process.ppid):
                continue
            try:
                fd = os.pidfd_open(process.pid)
            except OSError:
                continue
            now = process_tree.read(process.pid)
            if now is None or now.key != process.key:
                os.close(fd)
                continue
            rank, local_rank, self.world_size = found_rank
            self._alive[fd] = info = RankInfo(rank, local_rank, process.pid, process.start_ticks)
            if rank in self._newest:  # it is started again, and with it whatever the launcher starts
                self.earlier = (*self.earlier, *self._ends.values())[-MOST_EARLIER:]
                self._ends.clear()
            self._newest = {**self._newest, rank: info}
            self.all_ranks = (*self.all_ranks, info)[-MOST_EARLIER:]
            yield fd

    def _ended(self, fd: int) -> None:
        at_ns = time.monotonic_ns()
        alive, ends = (self._of_claimed, self._claimed_ends) if fd in self._of_claimed else (self._alive, self._ends)
        info = alive[fd]
        ends[info.rank] = _end(info, at_ns)
        del alive[fd]  # last: `wait_for_ends` goes by it


def _end(info: RankInfo, at_ns: int) -> RankExit | VanishedRank:
    """Return how a rank ended, as far as it can still be seen."""
    rank, pid = info.rank, info.pid
    process = process_tree.read(pid)
    status = process.exit_status if process is not None else None
    if process is None or status is None or process.start_ticks != info.start_ticks or process.state not in "ZX":
        return VanishedRank(rank, pid, at_ns)
    if os.WIFSIGNALED(status):
        return RankExit(rank, pid, at_ns, signal=os.WTERMSIG(status), core_dumped=os.WCOREDUMP(status))
    return RankExit(rank, pid, at_ns, code=os.WEXITSTATUS(status))


def with_launched(ranks: tuple[RankInfo, ...], launched: tuple[RankInfo, ...]) -> tuple[RankInfo, ...]:
    """Return the ranks found, and of those known each whose rank and local rank no other process has.

    The command is local rank 0 until another process is: Lightning's command is a rank itself, and starts the others.
    """
    numbers, local_ranks = {info.rank for info in launched}, {info.local_rank for info in launched}
    kept = (info for info in ranks if info.rank not in numbers and info.local_rank not in local_ranks)
    return tuple(sorted((*kept, *launched), key=lambda info: info.rank))


def _environment(pid: int) -> dict[str, str]:
    """Return the variables of a process that name its rank."""
    pairs = (row.decode("utf-8", "replace").partition("=") for row in process_tree.environment(pid))
    return {name: value for name, _, value in pairs if name in _RANK}


def _rank_of(environ: dict[str, str]) -> tuple[int, int, int] | None:
    """Return rank, local rank and world size as an environment names them, None without; without RANK, on one node, the local rank."""
    if _STANDBY in environ:
        return None
    local_rank, world_size = environ.get("LOCAL_RANK", ""), environ.get("WORLD_SIZE", "")
    alone = environ.get("NODE_RANK", "0") == "0"
    rank = environ.get("RANK", local_rank if alone else "")
    are_numbers = all(number.isascii() and number.isdigit() for number in (rank, local_rank, world_size))
    return (int(rank), int(local_rank), int(world_size)) if are_numbers else layout.mpi_rank(environ)
