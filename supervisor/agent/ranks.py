"""Watches and ends the ranks of this node, in a thread that nothing can block.

The main thread spawns the ranks and may then sit in a C++ store wait. So this thread alone signals ranks and sees them die, through pidfds.
It reads a rank's status with WNOWAIT: a dead rank stays a zombie and keeps its pid until torch reaps it after the attempt. Only for that
reason is it safe here to kill a process group by its leader's pid.

The first failing exit ends the attempt: the peers get TERM at once, and KILL after the grace. A stopped process gets CONT and KILL, because
TERM would not wake it. A rank that cannot be killed (state D) keeps the attempt open; the supervisor has a deadline for that.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from supervisor.agent import torch_error_files
from supervisor.agent.messages import AgentMessage, RankReaped, RanksStarted, RanksStopped, SpawnedRank
from supervisor.guardian import process_tree

if TYPE_CHECKING:
    from collections.abc import Callable

KILL_AGAIN_S = 1.0
END_DEADLINE_S = 5.0

# Outcomes of an attempt on this node. ALL_EXITED_0 is not yet the job's success: other nodes may still fail.
ALL_EXITED_0 = "all_exited_0"
SUCCEEDED = "succeeded"
FAILED = "failed"
MEMBERSHIP = "membership"
STOPPED = "stopped"


class EventSender(Protocol):
    """How an event leaves the agent."""

    def __call__(self, message: AgentMessage) -> None:
        """Send it."""


@dataclass(frozen=True, slots=True)
class MonitoredRank:
    """A spawned rank. `logs` are the streams that torch redirected to files: (stream name, path)."""

    rank: int
    local_rank: int
    pid: int
    pidfd: int
    start_ticks: int
    error_file: str = ""
    logs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RankStop:
    """How the ranks are being ended, and why: the outcome is that of the first request, the signal that of the newest."""

    signum: int
    grace_s: float
    outcome: str


@dataclass(slots=True)
class _MonitoredAttempt:
    """The facts of the attempt under way; guarded by `RankMonitor`'s lock."""

    number: int
    open: bool = False  # the main thread may spawn
    is_complete: bool = False  # every rank was spawned, or none will be
    alive: dict[int, MonitoredRank] = field(default_factory=dict)  # by pidfd
    all: list[MonitoredRank] = field(default_factory=list)
    stopping: RankStop | None = None
    kill_at: float | None = None
    signalled: set[int] = field(default_factory=set)  # pidfds that got the present signal
    outcome: str | None = None
    closing: bool = False  # the last report of the attempt is being written


def spawned(pid: int, rank: int, local_rank: int, error_file: str, logs: tuple[tuple[str, str], ...]) -> MonitoredRank:
    """The record of a child that was just started (and not reaped, so that the pid is surely its own)."""
    return MonitoredRank(rank, local_rank, pid, os.pidfd_open(pid), _stat(pid).start_ticks, error_file, logs)


def _stat(pid: int) -> process_tree.ProcessStat:
    """Read a child that is not reaped: it is there."""
    process = process_tree.read(pid)
    if process is None:
        raise ProcessLookupError(pid)
    return process


def _signal_group(rank: MonitoredRank, signum: int) -> None:
    """To the rank's process group, as torchrun does (DataLoader workers get it too); to the rank where it left its group."""
    try:
        os.killpg(rank.pid, signum)
    except OSError:
        with suppress(OSError):
            signal.pidfd_send_signal(rank.pidfd, signum)


def _end(rank: MonitoredRank, signum: int) -> None:
    stopped = False
    with suppress(OSError):
        stopped = _stat(rank.pid).stopped
    if stopped:
        _signal_group(rank, signal.SIGCONT)
        _signal_group(rank, signal.SIGKILL)
    else:
        _signal_group(rank, signum)


class RankMonitor:
    """The rank table and its watcher thread (started at once, ends with the process).

    `send` reports; `on_ended(attempt)` is called when no rank is left and `stopped` was sent, `on_crash()` when the watcher itself failed:
    it must end the process.
    """

    def __init__(
        self,
        send: EventSender,
        *,
        grace_s: float,
        on_ended: Callable[[int], None],
        on_crash: Callable[[], None],
    ) -> None:
        """Start the watcher; `grace_s` holds where a stop names none."""
        self._send = send
        self._grace_s = grace_s
        self._on_ended = on_ended
        self._on_crash = on_crash
        self._changed = threading.Condition()
        self._now = _MonitoredAttempt(0, is_complete=True, outcome=STOPPED)
        self._ended: dict[int, str] = {}  # how each attempt ended: the main thread may learn of it when the next has begun
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    # --- the main thread (`begin`: the link's) --------------------------------------------------------------------------------------

    def begin(self, attempt: int) -> None:
        """A new attempt: rendezvous first, no rank yet. The attempt before must have ended (its last report may be on its way)."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._now.outcome not in (None, ALL_EXITED_0), END_DEADLINE_S):
                msg = f"attempt {attempt} was begun before attempt {self._now.number} had ended"
                raise RuntimeError(msg)
            self._now = _MonitoredAttempt(attempt)

    def renumber(self, attempt: int, number: int) -> None:
        """Give the attempt under way, which has no rank yet, another number."""
        with self._changed:
            if self._now.number == attempt:
                self._now.number = number

    def may_spawn(self, attempt: int) -> bool:
        """May ranks be spawned? False where the attempt was stopped before it had any."""
        with self._changed:
            now = self._now
            now.open = now.number == attempt and now.stopping is None and now.outcome is None
            return now.open

    def add(self, rank: MonitoredRank) -> None:
        """Watch a rank just spawned; where the attempt is being stopped it is ended like the others."""
        with self._changed:
            self._now.all.append(rank)
            self._now.alive[rank.pidfd] = rank
        self._poke()

    def all_spawned(self, world_size: int) -> None:
        """Every rank of this node exists: report it. Deaths are reported from here on, so that none comes before its start."""
        with self._changed:
            now = self._now
        spawned = tuple(SpawnedRank(r.rank, r.local_rank, r.pid, r.start_ticks) for r in now.all)
        self._send(RanksStarted(now.number, spawned, world_size))
        with self._changed:
            now.is_complete = True
        self._poke()

    def abort(self, attempt: int) -> None:
        """Spawning failed: end the ranks that were started and wait for no other."""
        self.stop(attempt, signal.SIGTERM, None, FAILED)
        with self._changed:
            self._now.is_complete = True
        self._poke()

    def wait(self, attempt: int, timeout_s: float) -> str | None:
        """The outcome of the attempt, once there is one: ALL_EXITED_0 while `settle` is awaited, None while ranks live."""
        with self._changed:
            self._changed.wait_for(lambda: self._outcome(attempt) is not None, timeout_s)
            return self._outcome(attempt)

    def settle(self, attempt: int) -> str:
        """All ranks of this node, and as far as is known all others, exited 0: report success, unless a stop came first."""
        with self._changed:
            now = self._now
        if now.number == attempt:
            self._close(now, SUCCEEDED)
        with self._changed:
            self._changed.wait_for(lambda: self._outcome(attempt) not in (None, ALL_EXITED_0))
            return self._outcome(attempt) or FAILED

    def _outcome(self, attempt: int) -> str | None:
        return self._now.outcome if self._now.number == attempt else self._ended.get(attempt, STOPPED)

    # --- any thread -----------------------------------------------------------------------------------------------------------------

    def stop(self, attempt: int, signum: int, grace_s: float | None, outcome: str) -> bool:
        """End the attempt's ranks. Asked again: the newer signal and the shorter time hold, the first outcome stays.

        Returns False where `attempt` is not under way any more (its `stopped` was or is being sent).
        """
        grace_s = self._grace_s if grace_s is None else grace_s
        with self._changed:
            now = self._now
            if now.number != attempt or now.outcome not in (None, ALL_EXITED_0) or now.closing:
                return False
            self._begin_stopping(now, signum, grace_s, outcome)
            if not now.open:  # nothing was spawned and nothing will be
                now.is_complete = True
        self._poke()
        return True

    def fail(self, attempt: int, signum: int, grace_s: float, *, also_done: bool) -> bool:
        """End the attempt as if a rank had failed. Returns False, and changes nothing, where that is under way.

        also_done: if all ranks of this node ended well too, which is then not yet a success; else that stays.
        """
        with self._changed:
            now = self._now
            is_done = now.outcome is not None and not (also_done and now.outcome == ALL_EXITED_0)
            if now.number != attempt or now.stopping is not None or is_done or now.closing:
                return False
            return self.stop(attempt, signum, grace_s, FAILED)

    def alive(self) -> int:
        """How many ranks live."""
        with self._changed:
            return len(self._now.alive)

    def _begin_stopping(self, now: _MonitoredAttempt, signum: int, grace_s: float, outcome: str) -> None:
        before = now.stopping
        now.stopping = RankStop(signum, grace_s, before.outcome if before else outcome)
        kill_at = time.monotonic() + grace_s
        now.kill_at = kill_at if now.kill_at is None else min(now.kill_at, kill_at)
        now.signalled.clear()

    def _poke(self) -> None:
        os.eventfd_write(self._wake, 1)

    # --- the watcher thread ---------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            poller = select.poll()
            poller.register(self._wake, select.POLLIN)
            watched: set[int] = set()
            while True:
                with self._changed:
                    now, kill_at = self._now, self._now.kill_at if self._now.alive else None
                for fd, _ in poller.poll(None if kill_at is None else max(0.0, (kill_at - time.monotonic()) * 1000 + 1)):
                    if fd == self._wake:
                        with suppress(BlockingIOError):
                            os.eventfd_read(self._wake)
                with self._changed:
                    now = self._now
                    new = [fd for fd in now.alive if fd not in watched]
                for fd in new:
                    poller.register(fd, select.POLLIN)
                watched.update(new)
                self._end_ranks(now)
                if now.is_complete:
                    for rank in self._reap(now, watched, poller):
                        os.close(rank.pidfd)
                    self._finish(now)
        except BaseException:  # noqa: BLE001  whatever it is: without this thread nobody would see a rank die
            self._on_crash()

    def _end_ranks(self, now: _MonitoredAttempt) -> None:
        with self._changed:
            if now.stopping is None:
                return
            due = now.kill_at is not None and time.monotonic() >= now.kill_at
            signum = signal.SIGKILL if due else now.stopping.signum
            if due:
                now.signalled.clear()
                now.kill_at = time.monotonic() + KILL_AGAIN_S
            targets = [r for fd, r in now.alive.items() if fd not in now.signalled]
            now.signalled.update(r.pidfd for r in targets)
        for rank in targets:
            _end(rank, signum)

    def _reap(self, now: _MonitoredAttempt, watched: set[int], poller: select.poll) -> list[MonitoredRank]:
        """Report the ranks that died, the first failing one first of all stopping its peers."""
        dead: list[tuple[MonitoredRank, os.waitid_result, int]] = []
        for fd, rank in list(now.alive.items()):
            info = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is not None:
                dead.append((rank, info, time.monotonic_ns()))
        for rank, info, at_ns in dead:
            poller.unregister(rank.pidfd)
            watched.discard(rank.pidfd)
            exited = info.si_code == os.CLD_EXITED
            failed = not exited or info.si_status != 0
            with self._changed:
                del now.alive[rank.pidfd]
                first_failure = failed and now.stopping is None
                if first_failure:
                    self._begin_stopping(now, signal.SIGTERM, self._grace_s, FAILED)
            if first_failure:
                self._end_ranks(now)
            reaped = RankReaped(
                now.number,
                rank=rank.rank,
                pid=rank.pid,
                at_ns=at_ns,
                code=info.si_status if exited else None,
                signal=None if exited else info.si_status,
                core_dumped=info.si_code == os.CLD_DUMPED,
            )
            self._send(reaped)
        return [rank for rank, _, _ in dead]

    def _finish(self, now: _MonitoredAttempt) -> None:
        with self._changed:
            if now.alive or now.closing or now.outcome not in (None, ALL_EXITED_0):
                return
            if now.stopping is None:
                if now.outcome is None:
                    now.outcome = ALL_EXITED_0
                    self._changed.notify_all()
                return
            outcome = now.stopping.outcome
        self._close(now, outcome)

    def _close(self, now: _MonitoredAttempt, outcome: str) -> None:
        """Send `stopped` and let the main thread continue; by whichever thread comes first, once."""
        with self._changed:
            if now.closing or now.outcome not in (None, ALL_EXITED_0):
                return
            if outcome == SUCCEEDED and now.stopping is not None:  # the watcher closes it, with the outcome of that stop
                return
            now.closing = True
        left = torch_error_files.read(now.all) if outcome != SUCCEEDED and now.all else torch_error_files.TorchErrorFiles()
        self._send(RanksStopped(now.number, outcome, left.errors, left.tails))
        with self._changed:
            now.outcome = self._ended[now.number] = outcome
            self._changed.notify_all()
        self._on_ended(now.number)
