"""Passes on the findings about checkpoints while a job runs: to the core, to the alerts, to the terminal.

The finders are worker threads; everything is passed to the loop's thread here.
"""

from __future__ import annotations

import shlex
import traceback
from typing import TYPE_CHECKING, Final, assert_never

from supervisor.checkpoints.recording.reports import (
    CheckpointAlert,
    CheckpointCopied,
    CheckpointFound,
    CheckpointPruned,
    CheckpointTrouble,
    ReadMoved,
    ReadReported,
    SaveGone,
    SavesCounted,
    SavesMissed,
    SavesShared,
    WatcherFailed,
)
from supervisor.core.actions import Alert
from supervisor.core.events import CheckpointVerified, NewestSaveGone, SelectionMoved
from supervisor.journal.records import SAVES_COUNTED, Note
from supervisor.report.log_events import LogEvent
from supervisor.report.wording import position_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.checkpoints.recording.reports import CheckpointReport, ReadReport, SavesReport
    from supervisor.core.checkpoint_model import UnusedCheckpoints
    from supervisor.core.state import Stage
    from supervisor.report.event_log import EventLog
    from supervisor.report.reporter import Reporter
    from supervisor.report.terminal import TerminalWriter
    from supervisor.run.loop import Loop

#: How often the core hears that a selection continues: far within the time after which it gives one up (Policy.select_silence_s).
MOVED_EVERY_S: Final = 60.0


class CheckpointNews:
    """The news of one run's checkpoints. keep: the setting `checkpoints.keep`, which a pruned one is explained by."""

    def __init__(  # noqa: PLR0913 -- where the news go
        self,
        loop: Loop,
        reporter: Reporter,
        terminal: TerminalWriter,
        log: EventLog,
        *,
        keep: object,
        record: Callable[[Note], None],
    ) -> None:
        """`record` takes what `status` shows, for the journal."""
        self._record = record
        self._loop = loop
        self._reporter = reporter
        self._terminal = terminal
        self._log = log
        self._keep = keep
        self._selection: tuple[Stage, int] | None = None  # the one that is under way,
        self._moved_t = 0.0  # and when the core was last notified

    def took(self, report: CheckpointReport) -> None:
        """Pass a report on. From any thread."""
        loop, reporter = self._loop, self._reporter
        match report:
            case CheckpointFound(ref, attempt):
                loop.post(CheckpointVerified(loop.clock.now(), loop.state.attempt.number, ref, attempt))
            case CheckpointAlert(trouble, text, True):
                loop.call_soon(lambda: reporter.alert_over(trouble.value, text))
            case CheckpointAlert(trouble, text):
                goes_on = "; the training continues" if trouble is CheckpointTrouble.NOT_FINITE else ""
                loop.call_soon(lambda: reporter.alerted(Alert(trouble.value, loop.state.attempt.number, f"{text}{goes_on}")))
            case CheckpointCopied(unused, place):
                loop.call_soon(lambda: self._copied(unused, place))
            case CheckpointPruned(path, step, reason):
                loop.call_soon(lambda: self._pruned(path, step, reason))
            case ReadReported() | ReadMoved():
                self._took_of_read(report)
            case SaveGone() | SavesShared() | SavesMissed() | SavesCounted():
                self._took_of_saves(report)
            case WatcherFailed(text):
                message = f"the checkpoint watcher failed and continues: {text}"
                loop.call_soon(lambda: self._terminal.message(message, "warning"))
            case _:
                assert_never(report)

    def _took_of_read(self, report: ReadReport) -> None:
        if isinstance(report, ReadMoved):
            self._selection_moves()
        else:  # at once: before the loop runs, too
            self._terminal.message(report.text, "warning" if report.level == "warning" else "info")

    def _took_of_saves(self, report: SavesReport) -> None:
        loop = self._loop
        match report:
            case SaveGone(path, is_over):
                loop.post(NewestSaveGone(loop.clock.now(), loop.state.attempt.number, path, is_over))
            case SavesShared(path, ranks):
                loop.call_soon(lambda: self._shared(path, ranks))
            case SavesMissed(path, patterns, instead):
                loop.call_soon(lambda: self._missed(path, patterns, instead))
            case SavesCounted(text):
                loop.call_soon(lambda: self._record(Note(SAVES_COUNTED, text)))

    def _selection_moves(self) -> None:
        """Have the core wait on, now and then. From any thread."""
        loop = self._loop
        now, state = loop.clock.now(), loop.state
        selection = (state.stage, state.attempt.number)
        if selection != self._selection:
            self._selection, self._moved_t = selection, now
        elif state.selects and now - self._moved_t >= MOVED_EVERY_S:
            self._moved_t = now
            loop.post(SelectionMoved(now, state.attempt.number))

    def _copied(self, unused: UnusedCheckpoints, place: str) -> None:
        self._log.write(LogEvent.CHECKPOINT_COPIED, path=unused.newest, step=unused.step, copy=place)
        position = position_text(unused.step, unused.epoch)
        named = f"{unused.newest} of {position}" if position else unused.newest
        text = f"the attempt is not known to have loaded {named}, and may overwrite it: a copy is kept at {place}; {unused.remedy}"
        self._terminal.message(text, "warning")

    def _shared(self, path: str, ranks: tuple[int, int]) -> None:
        self._log.write(LogEvent.SAVES_SHARED, path=path, ranks=list(ranks))
        text = (
            f"local ranks {ranks[0]} and {ranks[1]} both save to {path}: one overwrites the other, and a reader may find half of a file; "
            "let one rank save, or give each a file of its own"
        )
        self._terminal.message(text, "warning")

    def _missed(self, path: str, patterns: tuple[str, ...], instead: str) -> None:
        self._log.write(LogEvent.SAVES_MISSED, path=path, patterns=list(patterns), instead=instead)
        advice = f"declare {shlex.quote(instead)} instead" if instead else "no format that is known here claims it"
        text = (
            f"the ranks saved {path}, and --checkpoints {shlex.join(patterns)} finds no checkpoint there: no restart is given one; {advice}"
        )
        self._terminal.message(text, "warning")

    def _pruned(self, path: str, step: int | None, reason: str) -> None:
        self._log.write(LogEvent.CHECKPOINT_PRUNED, path=path, step=step, outcome=reason or "removed")
        if not reason:
            self._terminal.message(f"removed {path}: checkpoints.keep = {self._keep}")


class ReaderEventFailures:
    """Reports the bugs in what follows the reader process. In its link's threads, also after the loop's end."""

    def __init__(self, log: EventLog, terminal: TerminalWriter) -> None:
        self._log, self._terminal = log, terminal
        self._texts: set[str] = set()

    def report(self, error: Exception) -> None:
        """Log an exception with its traceback, and show it, once."""
        text = f"{type(error).__name__}: {error}"
        self._log.write(LogEvent.EVENT_FAILED, error=text, traceback="".join(traceback.format_exception(error)))
        if text not in self._texts:
            self._texts.add(text)
            failure = "an event of the process that reads checkpoints was not taken"
            self._terminal.message(f"internal error (please report): {failure}: {text}; the job continues", "error")
