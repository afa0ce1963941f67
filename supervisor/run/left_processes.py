"""Reports the processes of the job that were not ended, and has the next attempt wait for those that KILL did not end."""

from __future__ import annotations

import threading
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
#: The time for finding out what a process waits for. The kernel may not answer: the process may hold the lock of its own memory.
ANSWER_S = 0.5


class LeftProcesses:
    """Those of one run. Its methods are called on the loop's thread, but for `refusal`."""

    def __init__(self, loop: Loop, reporter: Reporter) -> None:
        self._loop = loop
        self._reporter = reporter
        self._unkilled: dict[tuple[int, int], LeftProcess] = {}  # those that were not seen to end

    def report_from_guardian(self, attempt: int, left: Sequence[RemainingProcess]) -> None:
        """Report the processes that the guardian did not end."""
        if left:
            self._reporter.note("processes.left", {"attempt": attempt, "left": left})
        self._alert(attempt, [LeftProcess(**row) for row in left])

    def report_from_us(self, attempt: int, left: Sequence[LeftProcess], others: str) -> None:
        """Report the processes that this one could not end by itself.

        others: begins the warning about those that KILL need not have ended.
        """
        for process in left:
            if not process.unkilled:
                self._reporter.print_message(act.PrintMessage("warning", f"{others}: process {process.pid}: {process.why}"))
        self._alert(attempt, left)

    def refusal(self, within_s: float = UNKILLED_S) -> str:
        """Wait until those that KILL did not end are gone. Return why no attempt is started, "" if all are. In a worker thread."""
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
        """Those that the next attempt waits for."""
        return tuple(process.pid for process in tuple(self._unkilled.values()))

    @property
    def names(self) -> str:
        """Name those that the next attempt waits for, "" if there are none."""
        return ", ".join(map(description, self.unkilled_pids))

    def _alert(self, attempt: int, left: Sequence[LeftProcess]) -> None:
        for process in left:
            if not process.unkilled or process.key in self._unkilled:
                continue
            self._unkilled[process.key] = process
            named = description(process.pid)
            # a process that waits for nothing is on its way out: its memory is being freed, which takes seconds where it is much
            how = "has not ended yet after KILL, and waits for no disk and no driver" if ", state R" in named else "survives KILL"
            text = f"{named} {how}: no attempt is started beside it"
            self._reporter.alerted(act.Alert("unkilled", attempt, text, str(process.pid)))

    def _ended(self, pids: Sequence[int]) -> None:
        for pid in pids:
            self._reporter.alert_over("unkilled", f"pid {pid} is gone, which had survived KILL", str(pid))


def refusal(pids: Sequence[int]) -> str:
    """Return why no attempt is started beside these, in the form of an exception: evidence for the signature io_error.unkilled."""
    more = f", and {len(pids) - 1} more: pid {', '.join(map(str, pids[1:]))}" if len(pids) > 1 else ""
    return f"UnkilledProcess: {description(pids[0])} survives KILL{more}; no attempt is started beside it"


def description(pid: int) -> str:
    """Name a process for a person: its pid, its name, and what it waits for. Blocks at most ANSWER_S.

    Example: "pid 4242 (python3, state D, in write of /mnt/ckpt/step-100.pt on /mnt (nfs4))".
    """
    answer: list[str] = []
    thread = threading.Thread(target=lambda: answer.append(_waits_for(pid)), name="description", daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    return f"pid {pid} ({procfs.command_name(pid) or '?'}{answer[0] if answer else ''})"


def _waits_for(pid: int) -> str:
    waits = procfs.waits(pid)
    state = f", state {waits.state}" if waits.state else ""
    if waits.file is not None:
        mount = f" on {waits.file.mount} ({waits.file.fs_type})" if waits.file.mount else ""
        return f"{state}, in {waits.file.call} of {waits.file.path}{mount}"
    return f"{state}, in {waits.wchan}" if waits.wchan else state
