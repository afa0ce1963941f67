"""Sends and retries alerts: of each sink in order, until each is delivered or refused for good. The job never waits for it.

One thread decides for all sinks which delivery is next. A try has a thread of its own while it lasts, so a receiver that does not answer
delays no other. `enqueue` comes from the deciding loop and does no IO. The spool's thread makes an alert durable (spool.py); the sender
waits for it only `DISK_PATIENCE_S`, because an alert about a hung disk must get out. A dead receiver is retried for ever, after a random
wait up to a cap; a refused alert is kept in the spool. Over `CAP` waiting alerts of a sink the oldest is dropped and counted.

Import this module only where a sink is configured: a sink brings ssl.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never

from supervisor.alerts import spool
from supervisor.alerts.sinks import AlertSink, Delivered, DeliveryDeferred, DeliveryRefused, Outcome
from supervisor.alerts.spool import CAP, AlertState, DroppedAlerts, KeptAlert, KnownThreads, SpoolWriter
from supervisor.core.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisor.alerts.threads import Notification, Threads

    Log = Callable[[str, dict[str, object]], None]
    LogEntry = tuple[str, dict[str, object]]

DISK_PATIENCE_S: Final = 2.0
#: The longest that a try may take. Services answer within a second; a workflow, a mail server that holds its clients, a busy proxy do not.
MOST_TRY_S: Final = 60.0
#: Ids by which an alert that comes again is recognised, besides those that wait.
MOST_KNOWN: Final = 4 * CAP


@dataclass(frozen=True, slots=True)
class RetryPace:
    """How retries are spread: uniform in [0, min(cap, base * 2**n)] seconds, and not before Retry-After, which counts up to its cap."""

    base_s: float = 1.0
    cap_s: float = 60.0
    retry_after_cap_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Undelivered:
    """How many alerts did not reach a sink, and why."""

    count: int  # waiting for the next start, and refused
    name: str  # of the sink
    host: str
    reason: str  # why the last of them did not
    saved: bool  # whether they are kept
    file: Path  # where
    dropped: int = 0  # how many more there was no room for


@dataclass(slots=True, eq=False)
class QueuedAlert:
    """An alert that waits for its turn."""

    kept: KeptAlert
    queued_at: float  # monotonic seconds
    is_settled: bool = False  # the disk has it, or will not have it now


@dataclass(slots=True, eq=False)
class SinkQueue:
    """The alerts that wait for one sink. Guarded by the sender's condition."""

    name: str
    sink: AlertSink
    waiting: dict[str, QueuedAlert] = field(default_factory=dict)  # by their ids, oldest first
    known: dict[str, None] = field(default_factory=dict)  # ids of those that waited or wait, oldest first
    settled: dict[AlertState, deque[str]] = field(default_factory=lambda: {AlertState.SENT: deque(), AlertState.REFUSED: deque()})  # keys
    in_flight: str = ""  # the alert that is being tried: its receiver may have it, so it is not dropped
    is_last_try: bool = False  # of the try in flight: it began after the close
    began_at: float = 0.0  # of the try in flight, monotonic seconds
    patience_s: float = 0.0  # how long the next try may take; less than the sender's first: that one
    outcome: Outcome | None = None  # of the try that has just ended
    tries: int = 0  # of the alert whose turn it is
    not_before: float = 0.0  # monotonic seconds of its next try
    has_given_up: bool = False  # the last try before the end failed
    refused: int = 0
    trouble: str = "there was no time"
    dropped: DroppedAlerts | None = None  # ever
    drops: int = 0  # by this process
    drops_logged: int = 0


class AlertSender:
    """The sending thread of a job, with a queue for each sink, and the thread of the spool."""

    def __init__(self, directory: Path, deadline_s: float, log: Log, pace: RetryPace) -> None:
        """Read what an earlier process left in the directory of the job's files; `start` begins to send it.

        deadline_s: how long the first try of a sink may take.
        """
        self._deadline_s, self._log, self._pace = deadline_s, log, pace
        rows = spool.opened(directory, is_writer=True)
        self.file = rows.file
        self._left: dict[str, list[KeptAlert]] = {}
        for alert in rows.all(spool.ALERTS):
            self._left.setdefault(alert.sink, []).append(alert)
        self._threads = {row.sink: row.threads for row in rows.all(spool.THREADS)}
        self._dropped = {row.sink: row for row in rows.all(spool.DROPPED)}
        self._changed = threading.Condition()  # guards all below, and the queues
        self._queues: list[SinkQueue] = []
        self._closing_at: float | None = None
        self._spool = SpoolWriter(rows, self._settled, self._log_unsaved)
        self._thread = threading.Thread(target=self._run, name="alert-sender", daemon=True)

    def start(self) -> None:
        """Start both threads."""
        self._spool.thread.start()
        self._thread.start()

    # called by the deciding loop

    def add(self, name: str, sink: AlertSink) -> tuple[SinkQueue, Threads]:
        """Add a sink. Return its queue, and the threads that its receiver knows."""
        queue = SinkQueue(name, sink, dropped=self._dropped.get(name))
        for alert in self._left.get(name, ()):
            queue.known[alert.event_id] = None
            if alert.state is AlertState.WAITING:
                queue.waiting[alert.event_id] = QueuedAlert(alert, 0.0, is_settled=True)
            else:
                queue.settled[alert.state].append(alert.key)
        with self._changed:
            self._queues.append(queue)
            self._changed.notify()
        return queue, self._threads.get(name, {})

    def enqueue(self, queue: SinkQueue, notification: Notification) -> None:
        """Hand a notification over: microseconds, whatever disk and network do; never raises."""
        try:
            requests = queue.sink.requests(notification)
            alerts = [
                KeptAlert(queue.name, request.event_id, time.time(), request.title, body=request.body.decode("ascii"))
                for request in requests
            ]
        except Exception as error:  # noqa: BLE001 - a sink's bug must not end the loop that the job needs
            self.log_unmade(queue, error)
            return
        with self._changed:
            for alert in alerts:
                self._add(queue, alert)
            self._changed.notify()

    def log_unmade(self, queue: SinkQueue, error: Exception) -> None:
        """Log that an internal error cost an alert, before there was anything to keep."""
        self._write_log(_entry(queue, "alert.failed", outcome="unmade", reason=f"{type(error).__name__}: {error}"))

    def save_threads(self, queue: SinkQueue, threads: Threads) -> None:
        """Keep what the receiver of a sink knows (threads.py): of several calls the last counts."""
        self._spool.put_threads(KnownThreads(queue.name, threads))

    def close(self, deadline_s: float) -> int:
        """Try once more what waits, for at most `deadline_s`, and return how many alerts are left to the next start."""
        until = time.monotonic() + deadline_s
        with self._changed:
            self._closing_at = until
            self._changed.notify()
        self._thread.join(max(0.0, until - time.monotonic()))
        self._spool.stop()
        self._spool.thread.join(max(0.0, until - time.monotonic()))
        return sum(len(queue.waiting) for queue in self._queues)

    def undelivered(self) -> list[Undelivered]:
        """Return what did not get out, after `close`."""
        return [
            Undelivered(count, queue.name, queue.sink.host, queue.trouble, not self._spool.is_failing, self.file, queue.drops)
            for queue in self._queues
            if (count := len(queue.waiting) + queue.refused) or queue.drops
        ]

    def _add(self, queue: SinkQueue, alert: KeptAlert) -> None:
        if alert.event_id in queue.known:
            return
        queue.waiting[alert.event_id], queue.known[alert.event_id] = QueuedAlert(alert, time.monotonic()), None
        self._spool.put(alert)
        while len(queue.waiting) > CAP:
            oldest = next(event_id for event_id in queue.waiting if event_id != queue.in_flight)
            self._spool.remove(queue.waiting.pop(oldest).kept.key)
            queue.drops += 1
            queue.dropped = DroppedAlerts(queue.name, 1 + (queue.dropped.count if queue.dropped else 0), time.time())
            self._spool.put_dropped(queue.dropped)
        while len(queue.known) > MOST_KNOWN:
            del queue.known[next(iter(queue.known))]

    # the sending thread, and the threads of the tries

    def _run(self) -> None:
        is_over = False
        while not is_over:
            with self._changed:
                if (pause_s := self._pause_s()) is None or pause_s > 0:
                    self._changed.wait(pause_s)
                entries = [entry for queue in self._queues for entry in self._step(queue)]
                is_over = self._closing_at is not None and all(self._is_done(queue) for queue in self._queues)
            self._write_log(*entries)

    def _pause_s(self) -> float | None:
        """Return how long nothing is to be done; None: until there is news."""
        now = time.monotonic()
        pauses = [
            0.0 if queue.outcome is not None else self._due_at(queue) - now
            for queue in self._queues
            if queue.outcome is not None or (queue.waiting and not queue.in_flight and not queue.has_given_up)
        ]
        if self._closing_at is not None and all(self._is_done(queue) for queue in self._queues):
            return 0.0
        return max(0.0, min(pauses)) if pauses else None

    def _is_done(self, queue: SinkQueue) -> bool:
        return not queue.in_flight and (queue.has_given_up or not queue.waiting)

    def _due_at(self, queue: SinkQueue) -> float:
        """Return when the next try of a queue is due (monotonic seconds)."""
        first = next(iter(queue.waiting.values()))
        written_at = 0.0 if first.is_settled else first.queued_at + DISK_PATIENCE_S
        return max(written_at, 0.0 if self._closing_at is not None else queue.not_before)

    def _step(self, queue: SinkQueue) -> list[LogEntry]:
        """Note how a try ended, and begin the next one that is due. Return the lines for the log."""
        entries: list[LogEntry] = []
        if queue.outcome is not None:
            entries += self._end_try(queue, queue.outcome)
        if queue.drops > queue.drops_logged:
            queue.drops_logged = queue.drops
            entries.append(_entry(queue, "alert.dropped", total=queue.drops))
        if queue.waiting and not queue.in_flight and not queue.has_given_up and self._due_at(queue) <= time.monotonic():
            self._begin_try(queue)
        return entries

    def _begin_try(self, queue: SinkQueue) -> None:
        alert = next(iter(queue.waiting.values())).kept
        left_s = max(self._deadline_s, queue.patience_s)
        queue.in_flight, queue.is_last_try, queue.began_at = alert.event_id, self._closing_at is not None, time.monotonic()
        if self._closing_at is not None:
            left_s = min(left_s, self._closing_at - queue.began_at)
        if left_s <= 0:
            queue.outcome = DeliveryDeferred("no time left")
            return
        try:
            threading.Thread(target=self._try, args=(queue, alert, left_s), name="alert-try", daemon=True).start()
        except RuntimeError as error:  # no thread can be started now
            queue.outcome = DeliveryDeferred(str(error))

    def _try(self, queue: SinkQueue, alert: KeptAlert, left_s: float) -> None:
        try:
            outcome = queue.sink.deliver(alert.event_id, alert.body.encode("ascii"), left_s)
        except Exception as error:  # noqa: BLE001 - a sink's bug must not hold up what waits behind it
            outcome = DeliveryDeferred(f"unexpected {type(error).__name__}")
        with self._changed:
            queue.outcome = outcome
            self._changed.notify()

    def _end_try(self, queue: SinkQueue, outcome: Outcome) -> list[LogEntry]:
        queued = queue.waiting[queue.in_flight]
        queue.in_flight, queue.outcome = "", None
        host, event_id = queue.sink.host, queued.kept.event_id
        match outcome:
            case Delivered():
                queue.patience_s = min(MOST_TRY_S, 2 * (time.monotonic() - queue.began_at))
                self._settle(queue, replace(queued.kept, state=AlertState.SENT, body=""))
                return [_entry(queue, "alert.sent", event_id=event_id, host=host)]
            case DeliveryRefused(reason):
                queue.refused += 1
                queue.trouble = reason
                self._settle(queue, replace(queued.kept, state=AlertState.REFUSED, reason=reason))
                return [_entry(queue, "alert.failed", outcome="refused", event_id=event_id, host=host, reason=reason)]
            case DeliveryDeferred(reason, after_s):
                queue.trouble = reason
                queue.tries += 1
                queue.patience_s = min(MOST_TRY_S, 2 * max(self._deadline_s, queue.patience_s))
                pause_s = random.uniform(0, min(self._pace.cap_s, self._pace.base_s * 2.0 ** min(queue.tries, 32)))  # noqa: S311 - no secret
                queue.not_before = time.monotonic() + max(pause_s, min(after_s, self._pace.retry_after_cap_s))
                queue.has_given_up = queue.is_last_try
                if queue.has_given_up:
                    return [_entry(queue, "alert.failed", outcome="left", host=host, reason=reason, waiting=len(queue.waiting))]
                if queue.tries & (queue.tries - 1):  # logged at the 1st, 2nd, 4th, 8th …: an outage of a day is a dozen lines
                    return []
                more = {"reason": reason, "tries": queue.tries, "waiting": len(queue.waiting)}
                return [_entry(queue, "alert.failed", outcome="delayed", event_id=event_id, host=host, **more)]
            case _:
                assert_never(outcome)

    def _settle(self, queue: SinkQueue, alert: KeptAlert) -> None:
        """Take an alert out of the queue, and keep it with those that were sent or refused."""
        del queue.waiting[alert.event_id]
        queue.tries, queue.not_before = 0, 0.0
        keys = queue.settled[alert.state]
        keys.append(alert.key)
        self._spool.put(alert)
        while len(keys) > CAP:
            self._spool.remove(keys.popleft())

    # the thread of the spool

    def _settled(self, keys: Sequence[str]) -> None:
        with self._changed:
            for key in keys:
                name, _, event_id = key.rpartition(" ")
                for queue in self._queues:
                    if queue.name == name and (queued := queue.waiting.get(event_id)) is not None:
                        queued.is_settled = True
            self._changed.notify()

    def _log_unsaved(self, reason: str) -> None:
        self._write_log(("alert.failed", {"outcome": "unsaved", "reason": reason}))

    def _write_log(self, *entries: LogEntry) -> None:
        for event, fields in entries:
            with contextlib.suppress(Exception):  # the logger may be as stuck as the reported part
                self._log(event, fields)


def _entry(queue: SinkQueue, event: str, **fields: object) -> LogEntry:
    return event, {"sink": queue.name, **fields}
