"""Takes each event once and brings it to every sink whose filter wants it; groups events into notifications first (threads.py).

Webhooks get every event: their payload of version 1 is an interface. All methods are called on the loop's thread, take microseconds and
never raise; the sinks' own threads do the rest.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from supervisor.alerts import delivery, threads
from supervisor.alerts.delivery import AlertSender
from supervisor.alerts.model import OF_RUNS, AlertSeverity, OutgoingAlert, ThreadEffect
from supervisor.alerts.outbox import read_threads
from supervisor.core.values import Struct, field

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from supervisor.alerts.delivery import Log, RetryPace, Undelivered
    from supervisor.alerts.sinks import AlertSink


class AlertFilter(Struct, frozen=True):
    """What a sink wants. runs: the start and the end of a run too."""

    severity: AlertSeverity = AlertSeverity.INFO
    runs: bool = False

    def wants(self, alert: OutgoingAlert) -> bool:
        """Whether an event passes. The end of a thread always does: threads.py knows whether its beginning passed."""
        if alert.event in OF_RUNS:
            return self.runs
        if alert.event.row.effect is ThreadEffect.CLOSE:
            return True
        return alert.severity.rank >= self.severity.rank


class AlertRoute(Struct):
    """The way to one sink. `threads` is None where events are not grouped."""

    wanted: AlertFilter
    sender: AlertSender
    threads: threads.Threads | None = None


class AlertRouter(Struct):
    """All sinks of a job."""

    settle_s: float
    routes: list[AlertRoute] = field(default_factory=list)

    def add(  # noqa: PLR0913 (what a route is made of)
        self, name: str, sink: AlertSink, outbox: Path, *, wanted: AlertFilter, grouped: bool, deadline_s: float, log: Log, pace: RetryPace
    ) -> None:
        """Start sending to one more sink, at first what an earlier process left in `outbox`."""
        known = _known(outbox) if grouped else None
        self.routes.append(AlertRoute(wanted, delivery.start(outbox, sink, deadline_s, log, name=name, pace=pace), known))

    def enqueue(self, alert: OutgoingAlert) -> None:
        """Take an event."""
        for route in self.routes:
            try:
                # a run that ends well ends all threads, whether or not the sink wants runs reported
                if route.threads is not None and (alert.exit_code == 0 or route.wanted.wants(alert)):
                    self._keep(route, threads.add_event(route.threads, alert, show=route.wanted.wants(alert)))
                elif route.threads is None and route.wanted.wants(alert):
                    route.sender.enqueue(alert)
            except Exception as error:  # noqa: BLE001 - an alert must not end the loop
                route.sender.log_unmade(error)

    def clear(self, kind: str, now: float, subject: str = "") -> None:
        """Note that what the threads of this kind fired for is over."""
        for route in self.routes:
            if route.threads is not None:
                self._keep(route, threads.calm_thread(route.threads, kind, now, subject))

    def tick(self, now: float, *, closing: bool = False) -> None:
        """Send what is due."""
        for route in self.routes:
            if not route.threads:
                continue
            left, found = threads.due(route.threads, now, self.settle_s, closing=closing)
            for notification in found:
                route.sender.enqueue(notification)
            self._keep(route, left)

    def close(self, now: float, deadline_s: float) -> None:
        """Send all that waits, for at most `deadline_s`."""
        self.tick(now, closing=True)
        until = time.monotonic() + deadline_s
        for route in self.routes:
            route.sender.begin_close(until)
        for route in self.routes:
            route.sender.finish_close(until)

    def undelivered(self) -> Sequence[Undelivered]:
        """Return what did not get out, after `close`."""
        return [left for route in self.routes if (left := route.sender.undelivered()) is not None]

    @staticmethod
    def _keep(route: AlertRoute, changed: threads.Threads) -> None:
        if changed != route.threads:
            route.threads = changed
            route.sender.save_threads(msgspec.json.encode(changed))


def _known(outbox: Path) -> threads.Threads:
    """Return the threads that an earlier process kept; none where they cannot be read, so that an old file stops nothing."""
    try:
        return msgspec.json.decode(read_threads(outbox) or b"{}", type=threads.Threads)
    except (msgspec.DecodeError, ValueError):
        return {}
