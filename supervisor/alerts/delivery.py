"""Sends and retries alerts in order, until each is delivered or refused for good; the job never waits for it.

`enqueue` comes from any thread and does no IO. The outbox thread makes an alert durable; the sending thread waits for it only
`DISK_PATIENCE_S`, because an alert about a hung disk must get out. A dead endpoint is retried for ever, with full jitter and a cap
(tenacity); a refused alert is kept under `outbox/dead/`. Over `CAP` waiting alerts the oldest is dropped and counted.

Import this module only where a sink is configured: it brings tenacity, and the sink brings ssl.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from tenacity import RetryCallState, Retrying, retry_if_result, wait_random_exponential

from supervisor.alerts.outbox import CAP, Outbox
from supervisor.alerts.outbox_thread import OutboxThread, QueuedAlert
from supervisor.alerts.sinks import AlertSink, Delivered, DeliveryDeferred, DeliveryRefused, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.alerts.model import OutgoingAlert
    from supervisor.alerts.threads import Notification

    Log = Callable[[str, dict[str, object]], None]

DISK_PATIENCE_S = 2.0
#: Ids by which an alert that comes again is recognised, besides those in the outbox.
MOST_KNOWN = 4 * CAP


@dataclass(frozen=True, slots=True)
class RetryPace:
    """How retries are spread: uniform in [0, min(cap, base * 2**n)] seconds, and not before Retry-After, which counts up to its cap."""

    base_s: float = 1.0
    cap_s: float = 60.0
    retry_after_cap_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Undelivered:
    """What did not reach `host`: the alerts that wait for the next start and those that were refused, and why the last of them did not.

    name: of the sink. outbox: where they are kept, if they are saved. dropped: how many more there was no room for.
    """

    count: int
    name: str
    host: str
    reason: str
    saved: bool
    outbox: Path
    dropped: int = 0


@dataclass(slots=True)
class _AlertDelivery:
    """The sending thread. `changed` guards what other threads touch too, from `waiting` on."""

    name: str
    sink: AlertSink
    deadline_s: float
    pace: RetryPace
    log: Log
    outbox: Outbox
    disk_hangs: bool = False
    refused: int = 0
    trouble: str = "there was no time"
    drops_logged: int = 0
    disk: OutboxThread = field(init=False)
    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: dict[str, QueuedAlert] = field(default_factory=dict)
    known: dict[str, None] = field(default_factory=dict)  # ids of those that waited or wait, oldest first
    in_flight: str = ""  # its receiver may have it already: it is not dropped
    drops: int = 0
    loaded: bool = False
    closing_at: float | None = None

    def __post_init__(self) -> None:
        self.disk = OutboxThread(self.outbox, self.add_older, self.log_unsaved)

    def add(self, entry: QueuedAlert) -> None:
        """Take in an alert, and drop the oldest one if too many wait."""
        with self.changed:
            if entry.event_id in self.known:
                return
            self.disk.put(entry)
            self.waiting[entry.event_id], self.known[entry.event_id] = entry, None
            self.trim()
            self.changed.notify()

    def add_older(self, entries: list[QueuedAlert]) -> None:
        """Take in what an earlier process left, which may come late when the disk is slow."""
        with self.changed:
            self.loaded = True
            older = {
                queued_alert.event_id: queued_alert
                for queued_alert in entries
                if queued_alert.event_id not in self.known or queued_alert.event_id in self.waiting
            }
            self.waiting = older | {event_id: one for event_id, one in self.waiting.items() if event_id not in older}
            self.known = dict.fromkeys((*older, *self.known))
            self.trim()
            self.changed.notify()

    def begin_close(self, until: float) -> None:
        """Have what waits tried once more, until `until` (monotonic seconds)."""
        with self.changed:
            self.closing_at = until
            self.changed.notify()

    def trim(self) -> None:
        while len(self.waiting) > CAP:
            oldest = next(event_id for event_id in self.waiting if event_id != self.in_flight)
            self.disk.drop(self.waiting.pop(oldest))
            self.drops += 1
        while len(self.known) > MOST_KNOWN:
            del self.known[next(iter(self.known))]

    def run(self) -> None:
        with self.changed:
            patience = time.monotonic() + DISK_PATIENCE_S
            while not self.loaded and (left_s := min(patience, self.closing_at or patience) - time.monotonic()) > 0:
                self.changed.wait(left_s)
        while entry := self.next():
            closes = self.closing_at is not None  # before the try: one that was under way then is not the last
            is_done = self.send(entry)
            self.in_flight = ""
            self.log_drops()
            if closes and not is_done:
                return

    def next(self) -> QueuedAlert | None:
        """Wait for an alert, and return the oldest; None at the end."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self.closing_at is not None)
            return next(iter(self.waiting.values()), None)

    def send(self, entry: QueuedAlert) -> bool:
        """Bring one alert to its end; False where it has to wait: this process closes, or it was dropped."""
        self.disk_hangs = not entry.settled.wait(0.0 if self.disk_hangs else DISK_PATIENCE_S)
        if entry.repeated:  # sent before, or among those loaded, which may come after this one when the disk is slow
            with self.changed:
                if self.waiting.get(entry.event_id) is entry:
                    del self.waiting[entry.event_id]
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
        with self.changed:
            self.waiting.pop(entry.event_id, None)
        return True

    def deliver(self, entry: QueuedAlert) -> Outcome:
        left_s = self.deadline_s if self.closing_at is None else min(self.deadline_s, self.closing_at - time.monotonic())
        with self.changed:
            if left_s <= 0 or entry.event_id not in self.waiting:
                return DeliveryDeferred("no time left" if left_s <= 0 else "dropped")
            self.in_flight = entry.event_id
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
        """Sleep between two tries; closing ends it at once."""
        self.in_flight = ""
        self.log_drops()
        with self.changed:
            self.changed.wait_for(lambda: self.closing_at is not None, seconds)

    def log_drops(self) -> None:
        """Log how many alerts were dropped, if more than the last time."""
        if self.drops > self.drops_logged:
            self.drops_logged = self.drops
            self.log_event("alert.dropped", total=self.drops_logged)

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

    def __init__(self, delivery: _AlertDelivery) -> None:
        """Start both threads."""
        self._delivery = delivery
        self._thread = threading.Thread(target=delivery.run, name="alert-sender", daemon=True)
        delivery.disk.thread.start()
        self._thread.start()

    def enqueue(self, alert: OutgoingAlert | Notification) -> None:
        """Hand an alert over: microseconds, whatever disk and network do; never raises."""
        try:
            for request in self._delivery.sink.requests(alert):
                self._delivery.add(QueuedAlert(request.event_id, request.body, request.title))
        except Exception as error:  # noqa: BLE001 - a sink's bug must not end the loop that the job needs
            self.log_unmade(error)

    def log_unmade(self, error: Exception) -> None:
        """Log that an internal error cost an alert, before there was anything to keep."""
        self._delivery.log_event("alert.failed", outcome="unmade", reason=f"{type(error).__name__}: {error}")

    def save_threads(self, content: bytes) -> None:
        """Have the threads of this sink kept in its outbox (threads.py): of several calls the last one counts."""
        self._delivery.disk.save_threads(content)

    def close(self, deadline_s: float) -> int:
        """Try once more what waits, for at most `deadline_s`, and give how many alerts are left to the next start."""
        until = time.monotonic() + deadline_s
        self.begin_close(until)
        return self.finish_close(until)

    def begin_close(self, until: float) -> None:
        """Have what waits tried once more, until `until` (monotonic seconds)."""
        self._delivery.begin_close(until)

    def finish_close(self, until: float) -> int:
        """Wait for that, and give how many alerts are left to the next start."""
        self._thread.join(max(0.0, until - time.monotonic()))
        self._delivery.disk.stop()
        self._delivery.disk.thread.join(max(0.0, until - time.monotonic()))
        self._delivery.log_drops()
        return len(self._delivery.waiting)

    def undelivered(self) -> Undelivered | None:
        """Return what did not get out, after `close`; None where all did."""
        delivery = self._delivery
        count = len(delivery.waiting) + delivery.refused
        if not count and not delivery.drops:
            return None
        is_saved, directory = not delivery.disk.in_trouble, delivery.outbox.directory
        return Undelivered(count, delivery.name, delivery.sink.host, delivery.trouble, is_saved, directory, delivery.drops)


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
