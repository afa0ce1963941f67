"""Reports the processes of the job that were not ended, and has the next attempt wait for those that KILL did not end.

Separate threads read what these processes wait for: a read of /proc may hang as the process does, and there may be a hundred processes.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

from supervisor.core import actions as act
from supervisor.guardian import ownership
from supervisor.guardian.ownership import LeftProcess
from supervisor.observe.hangs import procfs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.guardian.messages import RemainingProcess
    from supervisor.report.reporter import Reporter
    from supervisor.run.loop import Loop

#: How long an attempt waits for the end of processes that KILL did not end before it is refused. Much memory takes seconds to be freed.
UNKILLED_S = 20.0
#: The time to find out what any number of processes waits for. The kernel may not answer: a process may hold the lock of its own memory.
ANSWER_S = 0.5


class LeftProcesses:
    """The processes that one run left. All methods are for the loop's thread, except `refusal`, and `await_named` after the loop's end."""

    def __init__(self, loop: Loop, reporter: Reporter) -> None:
        self._loop = loop
        self._reporter = reporter
        self._unkilled: dict[tuple[int, int], LeftProcess] = {}  # processes that are not known to have ended
        self._descriptions: dict[int, str] = {}  # by pid, as soon as they are known; the dictionary is replaced, never changed
        self._alerts: queue.SimpleQueue[act.Alert] = queue.SimpleQueue()  # of processes that are described, until the loop raises them
        self._describing: list[threading.Thread] = []

    def report_from_guardian(self, attempt: int, left: Sequence[RemainingProcess]) -> None:
        """Report the processes that the guardian did not end."""
        if left:
            self._reporter.note("processes.left", {"attempt": attempt, "left": left})
        self._alert(attempt, [LeftProcess(**row) for row in left])

    def report_from_us(self, attempt: int, left: Sequence[LeftProcess], others: str) -> None:
        """Report the processes that the supervisor could not end by itself.

        others: begins the warning about processes that were left for another reason than surviving KILL.
        """
        for process in left:
            if not process.unkilled:
                self._reporter.print_message(act.PrintMessage("warning", f"{others}: process {process.pid}: {process.why}"))
        self._alert(attempt, left)

    def refusal(self, within_s: float = UNKILLED_S) -> str:
        """Wait for the end of processes that survived KILL. Return why no attempt is started, "" if all are gone. In a worker thread."""
        before = tuple(self._unkilled.values())
        left = ownership.await_end(before, within_s) if before else ()
        ended = [process for process in before if process not in left]
        for process in ended:
            self._unkilled.pop(process.key, None)
        if ended:
            self._loop.call_soon(lambda: self._ended([process.pid for process in ended]))
        return refusal([process.pid for process in left]) if left else ""

    @property
    def unkilled_pids(self) -> tuple[int, ...]:
        """The processes that the next attempt waits for."""
        return tuple(process.pid for process in tuple(self._unkilled.values()))

    @property
    def names(self) -> str:
        """The names of the processes that the next attempt waits for, "" for none; a pid alone if it is not described yet."""
        return ", ".join(self._descriptions.get(pid, f"pid {pid}") for pid in self.unkilled_pids)

    def await_named(self) -> None:
        """After the loop's end, raise the alerts for which it had no time. Waits a moment for the descriptions of processes."""
        until = time.monotonic() + 2 * ANSWER_S
        for thread in self._describing:
            thread.join(max(0.0, until - time.monotonic()))
        self._raise_alerts()

    def _alert(self, attempt: int, left: Sequence[LeftProcess]) -> None:
        new = {process.key: process for process in left if process.unkilled and process.key not in self._unkilled}
        if not new:
            return
        self._unkilled |= new
        pids = [process.pid for process in new.values()]
        thread = threading.Thread(target=self._describe, args=(attempt, pids), name="unkilled", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started: they are named by their pids
            self._put(attempt, {pid: f"pid {pid}" for pid in pids})
            self._raise_alerts()
        else:
            self._describing = [*(other for other in self._describing if other.is_alive()), thread]

    def _describe(self, attempt: int, pids: Sequence[int]) -> None:
        self._put(attempt, descriptions(pids))
        self._loop.call_soon(self._raise_alerts)

    def _put(self, attempt: int, described: dict[int, str]) -> None:
        self._descriptions = {**self._descriptions, **described}
        for pid, named in described.items():
            # a process that waits for nothing is about to end: its memory is being freed, and much memory takes seconds
            how = "has not ended yet after KILL, and waits for no disk and no driver" if ", state R" in named else "survives KILL"
            self._alerts.put(act.Alert("unkilled", attempt, f"{named} {how}: no attempt is started beside it", str(pid)))

    def _raise_alerts(self) -> None:
        while not self._alerts.empty():
            self._reporter.alerted(self._alerts.get())

    def _ended(self, pids: Sequence[int]) -> None:
        for pid in pids:
            self._reporter.alert_over("unkilled", f"pid {pid}, which had survived KILL, is gone", str(pid))


def refusal(pids: Sequence[int]) -> str:
    """Return why no attempt is started beside these processes, like an exception's text: evidence for the signature io_error.unkilled."""
    more = f", and {len(pids) - 1} more: pid {', '.join(map(str, pids[1:]))}" if len(pids) > 1 else ""
    return f"UnkilledProcess: {descriptions(pids[:1])[pids[0]]} survives KILL{more}; no attempt is started beside it"


def descriptions(pids: Sequence[int]) -> dict[int, str]:
    """Name each process for a person: its pid, its name, the reason of its wait. Blocks at most ANSWER_S for all: not on the loop's thread.

    Example: "pid 4242 (python3, state D, in write of /mnt/ckpt/step-100.pt on /mnt (nfs4))".
    """
    answers: dict[int, str] = {}
    answered = threading.Semaphore(0)

    def describe(pid: int) -> None:
        named = f"pid {pid} ({procfs.command_name(pid) or '?'}"
        answers[pid] = f"{named})"
        answers[pid] = f"{named}{_waits_for(pid)})"
        answered.release()

    asked = 0
    for pid in pids:
        try:
            threading.Thread(target=describe, args=(pid,), name="description", daemon=True).start()
        except RuntimeError:  # no thread can be started: the others are named by their pids
            break
        asked += 1
    until = time.monotonic() + ANSWER_S
    for _ in range(asked):
        answered.acquire(timeout=max(0.0, until - time.monotonic()))
    return {pid: answers.get(pid, f"pid {pid} (?)") for pid in pids}


def _waits_for(pid: int) -> str:
    waits = procfs.waits(pid)
    state = f", state {waits.state}" if waits.state else ""
    if waits.file is not None:
        mount = f" on {waits.file.mount} ({waits.file.fs_type})" if waits.file.mount else ""
        return f"{state}, in {waits.file.call} of {waits.file.path}{mount}"
    return f"{state}, in {waits.wchan}" if waits.wchan else state
