"""Reports what the guardian sees of a job's processes and of their output, at the terminal and in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.report.log_events import LogEvent
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.guardian.messages import OutputReport, SurvivingProcess
    from supervisor.job.job import Job
    from supervisor.report.event_log import EventLog
    from supervisor.report.terminal import TerminalWriter

#: In the command line of multiprocessing's resource tracker, which ends once its parent's pipe is closed.
RESOURCE_TRACKER: Final = "from multiprocessing.resource_tracker import"
_MOST_NAMED: Final = 5  # as many as fit a line


class ProcessReports:
    """Reports of one run. Its methods are called on the loop's thread."""

    def __init__(self, job: Job, terminal: TerminalWriter, log: EventLog) -> None:
        self._job, self._terminal, self._log = job, terminal, log
        self._closed_streams: set[int] = set()

    def stacks(self, attempt: int, stacks: Sequence[tuple[int, str]]) -> None:
        """Show the stacks that SIGQUIT asked for."""
        self._log.write(LogEvent.STACKS_DUMPED, attempt=attempt, ranks=[rank for rank, _ in stacks])
        for rank, text in stacks:
            self._terminal.message(f"stacks of rank {rank}:\n{text}")
        if not stacks:
            self._terminal.message("no rank sends heartbeats yet: their stacks cannot be requested", "warning")

    def survivors(self, processes: Sequence[SurvivingProcess]) -> None:
        """List once what outlives a finished job; nothing is killed after exit 0.

        A resource tracker ends by itself, and a process that has only a name (`[python]`) ended while it was listed.
        """
        stay = [process for process in processes if RESOURCE_TRACKER not in process["cmd"] and not process["cmd"].startswith("[")]
        listed = [{**process, "cmd": clean(process["cmd"])} for process in stay]
        if listed:
            names = ", ".join(f"{p['pid']} ({p['cmd']})" for p in listed[:_MOST_NAMED])
            more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
            self._terminal.message(f"the job is done; left running: {names}{more}")
            self._log.write(LogEvent.SURVIVORS_LISTED, processes=listed)

    def output(self, message: OutputReport) -> None:
        """Log trouble with the ranks' output; begin a line of our own after an unfinished one of theirs."""
        if message["ev"] == "line_unfinished":
            self._terminal.begin_line()
            return
        if message["ev"] == "refused":
            self._log.write(LogEvent.REQUEST_REFUSED, request=message["do"], text=message["text"])
            return
        if message["ev"] == "stdout_closed":
            stream = message["stream"]
            if stream not in self._closed_streams:
                self._closed_streams.add(stream)
                name = {1: "stdout", 2: "stderr"}.get(stream, str(stream))
                self._terminal.message(
                    f"{name} was closed by its reader: the job continues, its output is in {self._job.state / 'attempts'}", "warning"
                )
            return
        self._log.write(LogEvent.OUTPUT_DROPPED, dropped_bytes=message["dropped_bytes"], error=message["log_errors"])
