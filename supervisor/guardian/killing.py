"""What may be killed, and how it is ended: the processes proven to descend from a root, but those that ask to be left alone.

A process is signalled only if it is *proven* to descend from the root. The proof is parentage while the root lives: as a subreaper the root
is the parent of every orphan below it. So a daemon with its own session and an empty environment is found too, and a stranger that merely
copied our environment is not. A pid is signalled only through a pidfd whose process still has the start time that was seen.

Descent is lost where a guardian dies, or a supervisor with it. launch/orphans.py and launch/previous_processes.py hold the rules for these
two cases.

Two kinds are spared: a process with SUPERVISE_JOB_DETACH=1 in its environment with all that descends from it, and zombies. A process that
vanishes meanwhile is simply gone. `TreeTermination` holds no thread and no timer; its owner calls `tick` with the time.

Known weak spot: a scan of /proc is not atomic. So "nothing is left" needs either no child but the spared ones (exact: every chain of
descent begins with a child of the root) or two empty scans in a row.
"""

from __future__ import annotations

import collections
import os
import signal
import threading
import time

from . import process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .process_tree import ProcessStat

    Select = Callable[[dict[int, ProcessStat]], Collection[int]]

DETACH = b"SUPERVISE_JOB_DETACH=1"
#: Time that a process gets to vanish after KILL before it is reported as left (uninterruptible sleep, a fork bomb).
AFTER_KILL_S = 3.0
#: An environment is read under its process's own memory lock. A process that holds it in uninterruptible sleep does not answer.
#: The wait for one answer before others are asked beside it, and the wait for all answers of one round.
SLOW_ANSWER_S = 0.2
ANSWERS_S = 0.5


def send(process: ProcessStat, signum: int) -> bool:
    """Send a signal to exactly this process; False if it is gone or not ours to signal."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:
        pidfd = -1  # forbidden by an old sandbox: the start time alone has to do
    try:
        now = process_tree.read(process.pid)
        if now is None or now.start_ticks != process.start_ticks:
            return False
        if pidfd >= 0:
            signal.pidfd_send_signal(pidfd, signum)
        else:
            os.kill(process.pid, signum)
    except OSError:
        return False
    finally:
        if pidfd >= 0:
            os.close(pidfd)
    return True


class TreeTermination:
    """One request to end everything below `root` but `spare`; call `tick` until it answers True.

    signum: what is sent first; KILL follows `grace_s` after the first tick, at once to what is stopped. hard_s: when to give up,
    counted from the first tick. top: the root itself, where that is to be ended too. After that, `signalled` holds the processes
    that were, `left` those that remain and why, `detached` those of them that asked to be left alone, and `stuck` names the others of them.
    given_up: processes that were stuck before: they get KILL again, but are not waited for. detach_requests: shared by all endings
    of one owner.
    """

    def __init__(  # noqa: PLR0913 - four facts of the request, and what is known from earlier ones
        self,
        root: int,
        signum: int,
        grace_s: float,
        hard_s: float | None = None,
        *,
        top: ProcessStat | None = None,
        given_up: Collection[tuple[int, int]] = (),
        detach_requests: DetachRequests | None = None,
    ) -> None:
        self.root = root
        self.top = top
        self.signum = signum if grace_s > 0 else int(signal.SIGKILL)
        self.grace_s = grace_s
        self.hard_s = grace_s + AFTER_KILL_S if hard_s is None else hard_s
        self.left: list[tuple[ProcessStat, str]] = []
        self.detached: frozenset[int] = frozenset()
        self.stuck: frozenset[tuple[int, int]] = frozenset()
        self._given_up = given_up
        self._detach_requests = detach_requests or DetachRequests()
        self._began: float | None = None
        self._sent: dict[tuple[int, int], int] = {}
        self._seen: dict[tuple[int, int], ProcessStat] = {}
        self._empty_scans = 0

    @property
    def signalled(self) -> frozenset[int]:
        """The pids of the processes that were signalled."""
        return frozenset(pid for pid, _ in self._sent)

    def killed(self, process: ProcessStat) -> bool:
        """Whether KILL was sent to it; False too where it may not be signalled."""
        return self._sent.get(process.key) == signal.SIGKILL

    def hurry(self, now: float, signum: int, grace_s: float) -> None:
        """Take a second request into this one: the earlier KILL of both, and the earlier deadline."""
        elapsed_s = 0.0 if self._began is None else now - self._began
        self.signum = signum if grace_s > 0 else int(signal.SIGKILL)
        self.grace_s = min(self.grace_s, elapsed_s + grace_s)
        self.hard_s = min(self.hard_s, elapsed_s + grace_s + AFTER_KILL_S)

    def tick(self, now: float, spare: Collection[int] | Select = (), *, childless: bool = False) -> bool:
        """Scan once and send the signals that are due.

        spare: these pids and their descendants, or a function that selects them from this scan. childless: the root is known to have no
        other child, which saves the scan.
        """
        if self._began is None:
            self._began = now
        if childless:
            return True
        processes = process_tree.snapshot()
        spare = spare(processes) if callable(spare) else spare
        asked = self._detach_requests.detached(process_tree.below(self.root, processes, spare))
        targets = process_tree.below(self.root, processes, asked.union(spare))
        if self.top:
            targets = self._with_top(self.top, targets, processes)
        awaited = [process for process in targets if process.key not in self._given_up]
        self._empty_scans = 0 if awaited else self._empty_scans + 1
        over = now >= self._began + self.hard_s
        if self._empty_scans > 1 or over:
            self.detached = frozenset(asked)
            self.left = [(processes[pid], "SUPERVISE_JOB_DETACH=1 is in its environment") for pid in sorted(asked)]
            self.stuck = frozenset(process.key for process in targets)
            self.left += [(process, self._why_left(process)) for process in targets]
            return True
        for process in targets:
            self._signal(process, late=now >= self._began + self.grace_s or process.key in self._given_up)
        return False

    def _why_left(self, process: ProcessStat) -> str:
        what = "still there after KILL" if self.killed(process) else "it may not be signalled"
        return f"{what}, state {process.state}"

    def _with_top(self, top: ProcessStat, targets: list[ProcessStat], processes: dict[int, ProcessStat]) -> list[ProcessStat]:
        """Add the root, and the processes seen below it before it died: they have another parent now."""
        self._seen.update({process.key: process for process in (top, *targets)})
        alive = (processes.get(pid) for pid, _ in self._seen)
        return [process for process in alive if process and process.key in self._seen and process.alive]

    def _signal(self, process: ProcessStat, *, late: bool) -> None:
        signum = int(signal.SIGKILL) if late or process.stopped else self.signum
        if self._sent.get(process.key) in (signum, int(signal.SIGKILL)):
            return
        if send(process, signum):
            self._sent[process.key] = signum
            if process.stopped:
                send(process, signal.SIGCONT)


class DetachRequests:
    """The processes that ask to be left alone, by their own environment. An unreadable environment asks for nothing.

    Threads read, because a read can hang: a process that does not answer asks for nothing either, and is not asked twice.
    """

    def __init__(self) -> None:
        self._asked_for_it: set[tuple[int, int]] = set()
        self._silent: set[tuple[int, int]] = set()

    def detached(self, processes: Collection[ProcessStat]) -> set[int]:
        """Select them; blocks at most ANSWERS_S. A process that was not asked in that time counts among them until the next round."""
        waiting = collections.deque(one for one in processes if one.key not in self._silent)
        until = time.monotonic() + ANSWERS_S
        while waiting and time.monotonic() < until:
            thread = threading.Thread(target=self._ask, args=(waiting,), daemon=True)
            thread.start()
            before = -1
            while thread.is_alive() and before != len(waiting):
                before = len(waiting)
                thread.join(min(SLOW_ANSWER_S, max(0.0, until - time.monotonic())))
        unasked = {one.key for one in waiting}
        waiting.clear()
        return {one.pid for one in processes if one.key in self._asked_for_it or one.key in unasked}

    def _ask(self, waiting: collections.deque[ProcessStat]) -> None:
        while True:
            try:
                process = waiting.popleft()
            except IndexError:
                return
            self._silent.add(process.key)
            if DETACH in process_tree.environment(process.pid):
                self._asked_for_it.add(process.key)
            self._silent.discard(process.key)
