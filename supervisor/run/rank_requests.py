"""Work for running ranks: a save, the stacks of their threads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervisor.core import actions as act
from supervisor.core.events import SaveSearched, UnsavedFound
from supervisor.job.identity import LOOK_FILE
from supervisor.observe.hangs import look, unsaved
from supervisor.observe.processes import stack_dumps
from supervisor.observe.ranks import heartbeats

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.core.model import CheckpointRef
    from supervisor.job.clock import Clock
    from supervisor.job.job import Job
    from supervisor.report.reporter import Reporter
    from supervisor.run.loop import Loop
    from supervisor.run.threads import Threads

STACKS_DEADLINE_S = 3.0
#: Less than the ranks have left when they are examined (core/stop.py).
UNSAVED_DEADLINE_S = 2.5


def wall_t(clock: Clock, t: float) -> float:
    """Return a moment of the loop's clock by the wall clock, which may have been set since, and which file times follow."""
    return time.time() - (clock.now() - t)


class RankRequests:
    """Carries these requests out, each in a worker thread. saved_since: finds the checkpoint that a save made."""

    def __init__(
        self,
        job: Job,
        loop: Loop,
        reporter: Reporter,
        threads: Threads,
        saved_since: Callable[[float, float], CheckpointRef | None],
    ) -> None:
        self._job = job
        self._loop = loop
        self._reporter = reporter
        self._threads = threads
        self._saved_since = saved_since

    def request_save(self, action: act.RequestSave) -> None:
        """Create the file that supervisor.worker.should_save polls; the guardian creates the same file for orphans."""
        self._reporter.saving(action)

        def work() -> None:
            try:
                (self._job.scratch / "save-now").touch(mode=0o600)
            except OSError as error:
                text = f"the ranks cannot be asked to save: {self._job.scratch}: {error.strerror}"
                self._loop.call_soon(lambda: self._reporter.print_message(act.PrintMessage("warning", text)))

        self._threads.start("save", work, awaited=False)

    def find_unsaved(self, action: act.FindUnsaved) -> None:
        """Look at the ranks that have not saved as requested."""
        directory = self._job.attempt_dir(action.attempt)

        def work() -> None:
            beats = heartbeats.read(directory / "heartbeat")
            seen = look.take(
                look.with_beats((), beats), directory, deadline_s=UNSAVED_DEADLINE_S, beats={beat.rank: beat for beat in beats}
            )
            self._loop.post(UnsavedFound(self._loop.clock.now(), action.attempt, unsaved.text_of(seen, beats)))

        self._threads.start("unsaved", work, awaited=False)  # without an answer the deadline names nobody

    def dump_stacks(self, action: act.DumpStacks) -> None:
        """Ask each rank for the stacks of its threads, and report them."""
        directory = self._job.attempt_dir(action.attempt)

        def work() -> None:
            stacks = []
            for beat in heartbeats.read(directory / "heartbeat"):
                if beat.pid:
                    text = stack_dumps.request(beat.pid, beat.start_ticks, directory, deadline_s=STACKS_DEADLINE_S)
                    stacks.append((beat.rank, text))
            self._loop.call_soon(lambda: self._reporter.processes.stacks(action.attempt, stacks))

        self._threads.start("stacks", work, awaited=False)

    def keep_look(self, action: act.KeepLook) -> None:
        """Have the reporter keep the text of the newest look at the ranks, before the attempt's directory goes."""
        path = self._job.attempt_dir(action.attempt) / LOOK_FILE

        def work() -> None:
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                text = f"the look at the ranks was not kept: {path}: {error.strerror}"
            self._loop.call_soon(lambda: self._reporter.cards.look(action, text))

        self._threads.start("look", work, awaited=False)  # the attempt continues, or ends, without its page

    def find_save(self, action: act.FindSave) -> None:
        """Look for a checkpoint that is newer than the stop request, by its files' modification times."""
        since_t = wall_t(self._loop.clock, action.since_t)

        def work() -> None:
            checkpoint = self._saved_since(since_t, action.deadline_s)
            self._loop.post(SaveSearched(self._loop.clock.now(), action.attempt, checkpoint))

        self._threads.start("find-save", work, awaited=False)  # the core has a timer for it
