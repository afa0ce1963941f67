"""Keeps the alerts of a job on one node: those to send, those sent or refused, and each receiver's knowledge (threads.py).

One file, `alerts.jsonl` in the directory of the job's files, holds the rows of all sinks (checkpointing/io/row_file.py): one process
appends, everybody may read, a kill loses the last row at most, and the file is compacted. A row goes from `waiting` to `sent` or `refused`;
of a sink the newest `CAP` of each are kept, because their ids show that an alert is a repeat.

`SpoolWriter` writes in a thread of its own, so that a disk that hangs delays neither the deciding loop nor the sending. It keeps what must
be written by row: an alert that is dropped or delivered before its turn is never written, so a flood costs little. Alerts are written
before the threads in which they count as sent. A refusal of the disk (full, read-only, gone) is reported once; the row stays in memory, and
is tried again with the next row, at the latest after `RETRY_S`.

`supervise alerts replay` is another process. Its deliveries are in a file of its own, `alerts-replayed.jsonl`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from checkpointing.io.row_file import RowFile, RowTable, TableChange
from supervisor.alerts.threads import AlertThread
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

#: Alerts of a sink that wait, were sent, and were refused: of each so many are kept. An attempt makes at most three.
CAP: Final = 256
RETRY_S: Final = 30.0
FILE_NAME: Final = "alerts.jsonl"
REPLAYED: Final = "alerts-replayed.jsonl"
_SUBJECT: Final = "the file of the alerts"


class AlertState(StrEnum):
    """Where an alert is on its way to a receiver."""

    WAITING = "waiting"
    SENT = "sent"
    REFUSED = "refused"


class KeptAlert(Struct, frozen=True):
    """An alert on its way to one sink."""

    sink: str
    event_id: str
    t: float  # when it was put here, Unix seconds
    title: str
    state: AlertState = AlertState.WAITING
    body: str = ""  # of one that was sent, nothing
    reason: str = ""  # of one that was refused, the receiver's answer

    @property
    def key(self) -> str:
        """The key of its row."""
        return f"{self.sink} {self.event_id}"


class KnownThreads(Struct, frozen=True):
    """What the receiver of a sink knows, and what waits to be grouped."""

    sink: str
    threads: dict[str, AlertThread]


class DroppedAlerts(Struct, frozen=True):
    """How many alerts of a sink were ever dropped, because too many waited, and when the last one was (Unix seconds)."""

    sink: str
    count: int
    t: float


ALERTS: Final = RowTable("alert", KeptAlert, lambda row: row.key)
THREADS: Final = RowTable("threads", KnownThreads, lambda row: row.sink)
DROPPED: Final = RowTable("dropped", DroppedAlerts, lambda row: row.sink)


def opened(directory: Path, *, is_writer: bool = False) -> RowFile:
    """Read the spool in the directory of a job's files. Raises nothing: what cannot be read is not there."""
    return RowFile(directory / FILE_NAME, _SUBJECT, is_writer=is_writer)


def kept(directory: Path) -> tuple[KeptAlert, ...]:
    """Return every alert of a job, oldest first, while another process may write. A replayed one is treated as sent."""
    replayed = RowFile(directory / REPLAYED, _SUBJECT)
    again = {alert.key: alert for alert in replayed.all(ALERTS)}
    return tuple(again.get(alert.key, alert) for alert in opened(directory).all(ALERTS))


def problem(directory: Path) -> str:
    """Return why alerts that were kept may be missing in `kept`: a file of the spool, or a line of it, cannot be read. "" for none."""
    files = opened(directory), RowFile(directory / REPLAYED, _SUBJECT)
    return next((rows.problem for rows in files if rows.problem), "")


def dropped(directory: Path) -> tuple[DroppedAlerts, ...]:
    """Return how many alerts each sink of a job ever dropped."""
    return opened(directory).all(DROPPED)


@contextlib.contextmanager
def replaying(directory: Path) -> Iterator[Callable[[KeptAlert], str]]:
    """Yield a function that records a delivered alert, and returns why that failed, or "". Raises BlockingIOError beside another replay."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        rows = RowFile(directory / REPLAYED, _SUBJECT, is_writer=True)
        still = {alert.key for alert in opened(directory).all(ALERTS)}
        rows.remove(ALERTS, *(alert.key for alert in rows.all(ALERTS) if alert.key not in still))

        def record(alert: KeptAlert) -> str:
            rows.put(ALERTS, replace(alert, state=AlertState.SENT, body="", reason=""))
            return rows.not_written or ""

        yield record
    finally:
        os.close(fd)


class SpoolWriter:
    """The thread that writes. Every method returns at once and never raises."""

    def __init__(self, rows: RowFile, on_settled: Callable[[Sequence[str]], None], on_trouble: Callable[[str], None]) -> None:
        """Start nothing yet. `on_settled` gets the keys of alerts that the disk has, or will not have now; the thread calls both."""
        self._rows, self._on_settled, self._on_trouble = rows, on_settled, on_trouble
        self._changed = threading.Condition()  # guards all below
        self._alerts: dict[str, KeptAlert | None] = {}  # to be written, None: to be removed
        self._threads: dict[str, KnownThreads] = {}
        self._dropped: dict[str, DroppedAlerts] = {}
        self._stops = False
        self.is_failing = False  # the alerts in memory may be nowhere else
        self.thread = threading.Thread(target=self._run, name="alert-spool", daemon=True)

    def put(self, *alerts: KeptAlert) -> None:
        """Write alerts, or their new state."""
        with self._changed:
            self._alerts.update({alert.key: alert for alert in alerts})
            self._changed.notify()

    def remove(self, *keys: str) -> None:
        """Remove alerts."""
        with self._changed:
            self._alerts.update(dict.fromkeys(keys))
            self._changed.notify()

    def put_threads(self, threads: KnownThreads) -> None:
        """Write what a receiver knows, after the alerts that were put before."""
        with self._changed:
            self._threads[threads.sink] = threads
            self._changed.notify()

    def put_dropped(self, row: DroppedAlerts) -> None:
        """Write how many alerts were dropped."""
        with self._changed:
            self._dropped[row.sink] = row
            self._changed.notify()

    def stop(self) -> None:
        """End the thread after the work that was given to it."""
        with self._changed:
            self._stops = True
            self._changed.notify()

    def _run(self) -> None:
        while changes := self._next():
            alerts, threads, dropped_alerts = changes
            written = {key: alert for key, alert in alerts.items() if alert is not None}
            removed = {key: KeptAlert("", "", 0.0, "") for key in alerts if key not in written}
            try:
                if alerts or threads or dropped_alerts:
                    changed = (
                        TableChange(ALERTS, removed, written),
                        TableChange(DROPPED, {}, dropped_alerts),
                        TableChange(THREADS, {}, threads),
                    )
                    self._rows.change(*changed)
                else:
                    self._rows.put(ALERTS)  # what failed before
                reason = self._rows.not_written
            except Exception as error:  # noqa: BLE001 - a bug in here must not end the thread: alerts are sent from memory, as with a full disk
                reason = type(error).__name__
            self._settle(tuple(alerts), reason)

    def _settle(self, keys: Sequence[str], reason: str | None) -> None:
        is_new = reason is not None and not self.is_failing
        self.is_failing = reason is not None
        self._on_settled(keys)
        if is_new:
            self._on_trouble(str(reason).rpartition(": ")[2])  # without the path

    def _next(self) -> tuple[dict[str, KeptAlert | None], dict[str, KnownThreads], dict[str, DroppedAlerts]] | None:
        """Wait for changes and return them; none of them where it is time to try again; None at the end."""
        with self._changed:
            self._changed.wait_for(self._has_work, RETRY_S if self.is_failing else None)
            if self._stops and not (self._alerts or self._threads or self._dropped):
                return None
            changes = self._alerts, self._threads, self._dropped
            self._alerts, self._threads, self._dropped = {}, {}, {}
            return changes

    def _has_work(self) -> bool:
        return bool(self._alerts or self._threads or self._dropped or self._stops)
