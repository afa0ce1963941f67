"""Groups a job's alerts for people: which thread fires, is updated, is resolved. Pure.

Rules:

1. All incidents of a job are one thread, so a loop of restarts is one alert that updates. A GPU, a mirror, the disk have their own.
2. All events of a thread within `GATHER_S` are one notification: `opened` and `given_up` of one instant are one.
3. A thread that fires is updated when the cause or the action changes, when it becomes critical, when an event joins it (such as a changed
   batch), and at its 2nd, 4th, 8th … failure. Other repetitions count and are not sent.
4. A thread is resolved once it was calm for `settle_s`; at the end of the run each that is calm. A new failure before that is an update.
5. A run that ends with 0 calms all threads. One that was given up leaves its thread firing, until a later run trains.

Each sink has threads of its own, because its filter decides what its receiver knows to be firing. The state is the mapping of threads: what
receivers know, and the unsent ones. spool.py keeps it, so that a restarted supervisor continues with it.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final

from supervisor.alerts.model import AlertEvent, AlertSeverity, OutgoingAlert, ThreadEffect
from supervisor.core.values import Struct, replace

GATHER_S: Final = 1.0
#: Threads that are kept; beyond it the oldest goes, which a receiver then has to close itself.
MOST_THREADS: Final = 64
#: Events of one thread that wait for their notification. Of more the newest count.
MOST_GATHERED: Final = 32


class NotificationState(StrEnum):
    """The meaning of a notification for its thread."""

    FIRING = "firing"
    UPDATED = "updated"
    RESOLVED = "resolved"
    MESSAGE = "message"  # of no thread: it has no end


class AlertThread(Struct, frozen=True):
    """The state of one subject of alerts."""

    waiting: tuple[OutgoingAlert, ...] = ()  # events that were not sent yet
    sent: OutgoingAlert | None = None  # the last event that was sent; None: none was
    severity: AlertSeverity = AlertSeverity.INFO
    since_t: float = 0.0
    failures: int = 0  # since the thread fires
    calm_t: float | None = None  # since when it is calm; None: it is not
    ending: OutgoingAlert | None = None  # the event with which it became calm

    @property
    def fires(self) -> bool:
        """Whether it fires or will: an event that only joins does not make it fire."""
        return self.sent is not None or any(outgoing_alert.event.row.effect is ThreadEffect.OPEN for outgoing_alert in self.waiting)


class Notification(Struct, frozen=True):
    """One message to people."""

    thread: str  # 32 hex digits, equal for all that belongs together
    state: NotificationState
    alert: OutgoingAlert  # the event that leads
    severity: AlertSeverity  # of the thread
    raised: bool = False  # the thread became critical with this message
    also: tuple[OutgoingAlert, ...] = ()  # the other events of the same moment
    failures: int = 0  # of the thread so far
    since_t: float = 0.0  # since when the thread fires

    @property
    def event_id(self) -> str:
        """32 hex digits, equal for the same news: a supervisor that was killed after it sent this sends it under the same id."""
        episode = f"{self.since_t:.3f}", str(self.failures)
        names = "\0".join(
            (self.thread, self.state, *episode, self.alert.event_id, *(outgoing_alert.event_id for outgoing_alert in self.also))
        )
        return hashlib.sha256(names.encode()).hexdigest()[:32]


Threads = dict[str, AlertThread]


def add_event(threads: Threads, alert: OutgoingAlert, *, show: bool = True) -> Threads:
    """Return the threads after an event. show: whether people want the event itself; the end of a run calms the threads in any case."""
    row = alert.event.row
    if alert.event is AlertEvent.RUN_FINISHED and alert.exit_code == 0:
        threads = {key: _calmed(thread, alert.ts) for key, thread in threads.items()}
    if not show:
        return threads
    key = thread_key(row.thread, alert.subject)
    thread = threads.get(key, AlertThread())
    if row.effect is ThreadEffect.CLOSE:
        return {**threads, key: replace(_calmed(thread, alert.ts), ending=alert)} if thread.fires else threads
    if row.effect is ThreadEffect.OPEN:
        failures = thread.failures + (alert.event is not AlertEvent.GIVEN_UP)
        thread = replace(thread, calm_t=None, ending=None, failures=failures, since_t=thread.since_t or alert.ts)
    threads = {**threads, key: replace(thread, waiting=(*thread.waiting, alert)[-MOST_GATHERED:])}
    return threads if len(threads) <= MOST_THREADS else dict(list(threads.items())[-MOST_THREADS:])


def calm_thread(threads: Threads, kind: str, t: float, subject: str = "") -> Threads:
    """Return the threads when what `kind` fired for is over, as far as is known. The same threads where it does not fire."""
    key = thread_key(kind, subject)
    thread = threads.get(key)
    return threads if thread is None or thread.calm_t is not None else {**threads, key: _calmed(thread, t)}


def due(threads: Threads, now: float, settle_s: float, *, closing: bool = False) -> tuple[Threads, list[Notification]]:
    """Return the threads after the messages of now, and the notifications. closing: the run ends, so nothing waits any longer."""
    left: Threads = {}
    notifications: list[Notification] = []
    for key, before in threads.items():
        thread = before
        if thread.waiting and (closing or not 0 <= now - thread.waiting[0].ts < GATHER_S):
            thread, more = _sent(thread)
            notifications += more
        calm_long = thread.calm_t is not None and (closing or not 0 <= now - thread.calm_t < settle_s)
        if thread.sent is not None and calm_long and not thread.waiting:
            alert = thread.ending or replace(thread.sent, ts=thread.calm_t or now)
            notifications.append(_notification(NotificationState.RESOLVED, alert, thread))
        elif thread.sent is not None or thread.waiting:
            left[key] = thread
    return left, sorted(notifications, key=lambda notification: notification.alert.ts)


def single(alert: OutgoingAlert) -> Notification:
    """Return a message that is alone."""
    return Notification(thread_id(alert), NotificationState.MESSAGE, alert, alert.severity, since_t=alert.ts)


def thread_key(kind: str, subject: str) -> str:
    """Return the name of a thread within its job."""
    return f"{kind}:{subject}" if subject else kind


def thread_id(alert: OutgoingAlert) -> str:
    """Return the thread's name among all jobs and nodes, in which nothing can be read."""
    name = "\0".join((alert.node, alert.state_dir, alert.job, thread_key(alert.event.row.thread, alert.subject)))
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _calmed(thread: AlertThread, t: float) -> AlertThread:
    """Return the thread, calm since `t` unless it was before."""
    return replace(thread, calm_t=t if thread.calm_t is None else thread.calm_t)


def _sent(before: AlertThread) -> tuple[AlertThread, list[Notification]]:
    """Return the thread with nothing waiting, and its message."""
    waiting, thread = before.waiting, replace(before, waiting=())
    if not before.fires:
        return thread, [single(alert) for alert in waiting]
    lead = max(waiting, key=lambda alert: (alert.severity.rank, alert.event.row.effect is ThreadEffect.OPEN, alert.ts))
    also = tuple(outgoing_alert for outgoing_alert in waiting if outgoing_alert is not lead)
    severity = max(before.severity, lead.severity, key=lambda alert: alert.rank)
    raised = severity is AlertSeverity.CRITICAL and before.severity is not severity and before.sent is not None
    thread = replace(thread, severity=severity)
    if before.sent is None:
        return replace(thread, sent=lead), [_notification(NotificationState.FIRING, lead, thread, also=also)]
    if not (raised or _is_news(before.sent, waiting) or _is_power_of_two(before.failures)):
        return thread, []
    return replace(thread, sent=lead), [_notification(NotificationState.UPDATED, lead, thread, also=also, raised=raised)]


def _is_news(sent: OutgoingAlert, waiting: tuple[OutgoingAlert, ...]) -> bool:
    return any(
        outgoing_alert.event.row.effect is ThreadEffect.JOIN
        or (outgoing_alert.own_cause, outgoing_alert.action) != (sent.own_cause, sent.action)
        for outgoing_alert in waiting
    )


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _notification(
    state: NotificationState, alert: OutgoingAlert, thread: AlertThread, *, also: tuple[OutgoingAlert, ...] = (), raised: bool = False
) -> Notification:
    return Notification(thread_id(alert), state, alert, thread.severity, raised, also, thread.failures, thread.since_t)
