"""Sends and retries alerts in order, until each is delivered or refused for good; the job never waits for it.

`enqueue` comes from any thread and does no IO. The outbox thread makes an alert durable; the sending thread waits for it only
`DISK_PATIENCE_S`, because an alert about a hung disk must get out. A dead endpoint is retried for ever, with full jitter and a cap
(tenacity); a refused alert is kept under `outbox/dead/`. Over `CAP` waiting alerts the oldest is dropped and counted.

Import this module only where a sink is configured: it brings tenacity, and the sink brings ssl.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from tenacity import RetryCallState, Retrying, retry_if_result, wait_random_exponential

from supervisor.alerts.outbox import CAP, Outbox
from supervisor.alerts.outbox_thread import OutboxThread, QueuedAlert
from supervisor.alerts.sinks import AlertSink, Delivered, DeliveryDeferred, DeliveryRefused, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.alerts.model import OutgoingAlert
    from supervisor.alerts.threads import Notification

    Log = Callable[[str, dict[str, object]], None]

DISK_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class RetryPace:
    """How retries are spread: uniform in [0, min(cap, base * 2**n)] seconds, and not before Retry-After, which counts up to its cap."""

    base_s: float = 1.0
    cap_s: float = 60.0
    retry_after_cap_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Undelivered:
    """What did not reach `host`: the alerts that wait for the next start and those that were refused, and why the last of them did not.

    name: of the sink.
    """

    count: int
    name: str
    host: str
    reason: str
    saved: bool


@dataclass(frozen=True, slots=True)
class _LoadedAlerts:
    entries: list[QueuedAlert]


@dataclass(frozen=True, slots=True)
class _Close:
    until: float


@dataclass(slots=True)
class _Lost:
    """How many alerts the cap has cost so far; `enqueue` counts too, so that it need not log."""

    total: int = 0
    reported: int = 0


@dataclass(slots=True)
class _AlertDelivery:
    """The sending thread's state; nothing else touches it but the queue."""

    name: str
    sink: AlertSink
    deadline_s: float
    pace: RetryPace
    log: Log
    outbox: Outbox
    inbox: queue.SimpleQueue[QueuedAlert | _LoadedAlerts | _Close] = field(default_factory=queue.SimpleQueue)
    lost: _Lost = field(default_factory=_Lost)
    waiting: dict[str, QueuedAlert] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    loaded: bool = False
    disk_hangs: bool = False
    closing_at: float | None = None
    refused: int = 0
    trouble: str = "there was no time"
    disk: OutboxThread = field(init=False)

    def __post_init__(self) -> None:
        self.disk = OutboxThread(self.outbox, lambda entries: self.inbox.put(_LoadedAlerts(entries)), self.log_unsaved)

    def run(self) -> None:
        patience = time.monotonic() + DISK_PATIENCE_S
        while not self.loaded and (left_s := min(patience, self.closing_at or patience) - time.monotonic()) > 0:
            self.receive(left_s)
        while True:
            entry = next(iter(self.waiting.values()), None)
            if entry is not None:
                if not self.send(entry) and self.closing_at is not None:
                    return
            elif self.closing_at is not None and self.inbox.empty():
                return
            self.receive(None if entry is None and self.closing_at is None else 0.0)

    def send(self, entry: QueuedAlert) -> bool:
        """Bring one alert to its end; False where it has to wait: this process closes, or the cap dropped it."""
        self.disk_hangs = not entry.settled.wait(0.0 if self.disk_hangs else DISK_PATIENCE_S)
        if entry.repeated:  # sent before, or among those loaded, which may come after this one when the disk is slow
            self.waiting.pop(entry.event_id, None)
            self.known.discard(entry.event_id)
            return True
        tries = Retrying(
            sleep=self.nap,
            wait=self.pause_s,
            stop=lambda _: self.closing_at is not None or entry.event_id not in self.waiting,
            retry=retry_if_result(lambda outcome: isinstance(outcome, DeliveryDeferred)),
            before_sleep=lambda state: self.log_delayed(state, entry),
            retry_error_callback=_last_outcome,
        )
        outcome = tries(self.deliver, entry)
        match outcome:
            case Delivered():
                self.disk.sent(entry.event_id)
                self.log_event("alert.sent", event_id=entry.event_id, host=self.sink.host)
            case DeliveryRefused(reason):
                self.refused += 1
                self.disk.refuse(entry, reason)
                self.log_event("alert.failed", outcome="refused", event_id=entry.event_id, host=self.sink.host, reason=reason)
            case DeliveryDeferred(reason):
                if self.closing_at is not None:
                    self.log_event("alert.failed", outcome="left", host=self.sink.host, reason=reason, waiting=len(self.waiting))
                return False
            case _:
                assert_never(outcome)
        self.waiting.pop(entry.event_id, None)
        return True

    def deliver(self, entry: QueuedAlert) -> Outcome:
        left_s = self.deadline_s if self.closing_at is None else min(self.deadline_s, self.closing_at - time.monotonic())
        if left_s <= 0 or entry.event_id not in self.waiting:
            return DeliveryDeferred("no time left" if left_s <= 0 else "dropped")
        try:
            outcome = self.sink.deliver(entry.event_id, entry.body, left_s)
        except Exception as error:  # noqa: BLE001 - a sink's bug must not end the thread that all alerts need
            outcome = DeliveryDeferred(f"unexpected {type(error).__name__}")
        if not isinstance(outcome, Delivered):
            self.trouble = outcome.reason
        return outcome

    def pause_s(self, state: RetryCallState) -> float:
        jittered = wait_random_exponential(multiplier=self.pace.base_s, max=self.pace.cap_s)(state)
        outcome = _last_outcome(state)
        return max(jittered, min(outcome.after_s, self.pace.retry_after_cap_s)) if isinstance(outcome, DeliveryDeferred) else jittered

    def nap(self, seconds: float) -> None:
        """Sleep between two tries, taking in what comes; closing ends it at once."""
        until = time.monotonic() + seconds
        while self.closing_at is None and (left_s := until - time.monotonic()) > 0:
            self.receive(left_s)

    def receive(self, timeout_s: float | None) -> None:
        """Take one message (waiting for it that long), and then all that are there."""
        with contextlib.suppress(queue.Empty):
            self.accept(self.inbox.get(block=timeout_s != 0.0, timeout=timeout_s or None))
            while True:
                self.accept(self.inbox.get_nowait())

    def accept(self, message: QueuedAlert | _LoadedAlerts | _Close) -> None:
        match message:
            case QueuedAlert():
                if message.event_id not in self.known:
                    self.waiting[message.event_id] = message
            case _LoadedAlerts(entries):
                self.loaded = True
                older = {entry.event_id: entry for entry in entries if entry.event_id not in self.known or entry.event_id in self.waiting}
                self.waiting = older | {event_id: entry for event_id, entry in self.waiting.items() if event_id not in older}
            case _Close(until):
                self.closing_at = until
            case _:
                assert_never(message)
        self.known.update(self.waiting)
        while len(self.waiting) > CAP:
            del self.waiting[next(iter(self.waiting))]
            self.lost.total += 1
        if self.lost.total > self.lost.reported:
            self.lost.reported = self.lost.total
            self.log_event("alert.dropped", total=self.lost.total)

    def log_delayed(self, state: RetryCallState, entry: QueuedAlert) -> None:
        outcome = _last_outcome(state)
        tries = state.attempt_number
        if (
            isinstance(outcome, DeliveryDeferred) and tries & (tries - 1) == 0
        ):  # the 1st, 2nd, 4th, 8th …: an outage of a day is a dozen lines
            self.log_event(
                "alert.failed",
                outcome="delayed",
                event_id=entry.event_id,
                host=self.sink.host,
                reason=outcome.reason,
                tries=tries,
                waiting=len(self.waiting),
            )

    def log_unsaved(self, reason: str) -> None:
        self.log_event("alert.failed", outcome="unsaved", reason=reason)

    def log_event(self, event: str, **fields: object) -> None:
        with contextlib.suppress(Exception):  # whoever logs may be as stuck as what we report
            self.log(event, {"sink": self.name, **fields})


class AlertSender:
    """What the supervisor calls; the two threads work behind it. Made by `start`."""

    def __init__(self, courier: _AlertDelivery) -> None:
        """Start both threads."""
        self._courier = courier
        self._untaken: set[str] = set()
        self._thread = threading.Thread(target=courier.run, name="alert-sender", daemon=True)
        courier.disk.thread.start()
        self._thread.start()

    def enqueue(self, alert: OutgoingAlert | Notification) -> None:
        """Hand an alert over: microseconds, whatever disk and network do; never raises."""
        try:
            for request in self._courier.sink.requests(alert):
                if self._courier.inbox.qsize() >= CAP:
                    self._courier.lost.total += 1
                    continue
                entry = QueuedAlert(request.event_id, request.body, request.title)
                self._courier.disk.put(entry)
                self._courier.inbox.put(entry)
        except Exception as error:  # noqa: BLE001 - a sink's bug must not end the loop that the job needs
            self.log_unmade(error)

    def log_unmade(self, error: Exception) -> None:
        """Log that a bug of ours cost an alert, before there was anything to keep."""
        self._courier.log_event("alert.failed", outcome="unmade", reason=f"{type(error).__name__}: {error}")

    def save_threads(self, content: bytes) -> None:
        """Have the threads of this sink kept beside its outbox (threads.py): of several calls the last one counts."""
        self._courier.disk.save_threads(content)

    def close(self, deadline_s: float) -> int:
        """Try once more what waits, for at most `deadline_s`, and give how many alerts are left to the next start."""
        until = time.monotonic() + deadline_s
        self.begin_close(until)
        return self.finish_close(until)

    def begin_close(self, until: float) -> None:
        """Have what waits tried once more, until `until` (monotonic seconds)."""
        self._courier.inbox.put(_Close(until))

    def finish_close(self, until: float) -> int:
        """Wait for that, and give how many alerts are left to the next start."""
        self._thread.join(max(0.0, until - time.monotonic()))
        self._courier.disk.stop()
        self._courier.disk.thread.join(max(0.0, until - time.monotonic()))
        self._take_back()
        return len(self._courier.waiting) + len(self._untaken)

    def _take_back(self) -> None:
        """Remember what the sending thread never took: it was busy with an earlier alert until the end."""
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._courier.inbox.get_nowait()
                if isinstance(message, QueuedAlert) and message.event_id not in self._courier.known:
                    self._untaken.add(message.event_id)

    def undelivered(self) -> Undelivered | None:
        """Return what did not get out, after `close`; None where all did."""
        courier = self._courier
        count = len(courier.waiting) + len(self._untaken) + courier.refused
        return Undelivered(count, courier.name, courier.sink.host, courier.trouble, not courier.disk.in_trouble) if count else None


def _last_outcome(state: RetryCallState) -> Outcome:
    if state.outcome is None:
        return DeliveryDeferred("not tried")
    outcome: Outcome = state.outcome.result()
    return outcome


def start(  # noqa: PLR0913 - what the settings name, one by one
    outbox_dir: Path, sink: AlertSink, deadline_s: float, log: Log, *, name: str = "webhook", pace: RetryPace = RetryPace()
) -> AlertSender:
    """Start sending to `sink`, what an earlier process left in `outbox_dir` first. name: as it is logged."""
    return AlertSender(_AlertDelivery(name, sink, deadline_s, pace, log, Outbox(outbox_dir)))
