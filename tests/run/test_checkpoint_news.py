"""The reports about checkpoints while a job runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from supervisor.report.log_events import LogEvent
from supervisor.run.checkpoint_news import ReaderEventFailures


def test_a_bug_at_an_event_of_the_reader_process_is_logged_each_time_and_shown_once() -> None:
    logged: list[tuple[object, ...]] = []
    shown: list[tuple[str, str]] = []
    log: Any = SimpleNamespace(write=lambda event, **fields: logged.append((event, fields["error"], "LookupError" in fields["traceback"])))
    terminal: Any = SimpleNamespace(message=lambda text, level: shown.append((text, level)))
    failures = ReaderEventFailures(log, terminal)
    failures.report(LookupError("a bug"))
    failures.report(LookupError("a bug"))
    assert logged == 2 * [(LogEvent.EVENT_FAILED, "LookupError: a bug", True)]
    message = "internal error (please report): an event of the process that reads checkpoints was not taken"
    assert shown == [(f"{message}: LookupError: a bug; the job continues", "error")]
