"""Takes each event once and brings it to every sink whose filter wants it; groups events into notifications first (threads.py).

All methods are called on the loop's thread, take microseconds and never raise; the sender's threads do the rest (sender.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.alerts import threads
from supervisor.alerts.model import OF_RUNS, AlertSeverity, OutgoingAlert, ThreadEffect
from supervisor.alerts.sender import AlertSender, SinkQueue
from supervisor.core.values import Struct, field

if TYPE_CHECKING:
    from supervisor.alerts.sender import Undelivered
    from supervisor.alerts.sinks import AlertSink


class AlertFilter(Struct, frozen=True):
    """The filter of a sink."""

    severity: AlertSeverity = AlertSeverity.INFO  # the least
    runs: bool = False  # the start and the end of a run too

    def wants(self, alert: OutgoingAlert) -> bool:
        """Whether an event passes. The end of a thread always does: threads.py knows whether its beginning passed."""
        if alert.event in OF_RUNS:
            return self.runs
        if alert.event.row.effect is ThreadEffect.CLOSE:
            return True
        return alert.severity.rank >= self.severity.rank


class AlertRoute(Struct):
    """The way to one sink."""

    wanted: AlertFilter
    queue: SinkQueue
    threads: threads.Threads


class AlertRouter(Struct):
    """All sinks of a job. A thread is resolved once it was calm for `settle_s` seconds."""

    settle_s: float
    sender: AlertSender
    routes: list[AlertRoute] = field(default_factory=list)

    def add(self, name: str, sink: AlertSink, wanted: AlertFilter) -> None:
        """Add a sink, which gets what an earlier process left for it first."""
        queue, known = self.sender.add(name, sink)
        self.routes.append(AlertRoute(wanted, queue, known))

    def enqueue(self, alert: OutgoingAlert) -> None:
        """Take an event."""
        for route in self.routes:
            try:
                # a run that ends well ends all threads, whether or not the sink wants runs reported
                if alert.exit_code == 0 or route.wanted.wants(alert):
                    self._keep(route, threads.add_event(route.threads, alert, show=route.wanted.wants(alert)))
            except Exception as error:  # noqa: BLE001 - an alert must not end the loop
                self.sender.log_unmade(route.queue, error)

    def clear(self, kind: str, now: float, subject: str = "") -> None:
        """Note that what the threads of this kind fired for is over."""
        for route in self.routes:
            self._keep(route, threads.calm_thread(route.threads, kind, now, subject))

    def tick(self, now: float, *, closing: bool = False) -> None:
        """Send the due messages."""
        for route in self.routes:
            if not route.threads:
                continue
            left, notifications = threads.due(route.threads, now, self.settle_s, closing=closing)
            for notification in notifications:
                self.sender.enqueue(route.queue, notification)
            self._keep(route, left)

    def close(self, now: float, deadline_s: float) -> None:
        """Send all that waits, for at most `deadline_s`."""
        self.tick(now, closing=True)
        self.sender.close(deadline_s)

    def undelivered(self) -> list[Undelivered]:
        """Return what did not get out, after `close`."""
        return self.sender.undelivered()

    def _keep(self, route: AlertRoute, changed: threads.Threads) -> None:
        if changed != route.threads:
            route.threads = changed
            self.sender.save_threads(route.queue, changed)
