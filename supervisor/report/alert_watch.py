"""At each tick: sends the notifications that are due, raises the alerts that no event announces, and pings the dead man's switch.

Loop's thread only; the ping itself is for a worker thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.config.intervals import PING_S
from supervisor.core.actions import Alert
from supervisor.job.local_time import clock_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.alerts.endpoint import HttpEndpoint
    from supervisor.alerts.sinks import Outcome
    from supervisor.core.state import JobState
    from supervisor.job.job import Job
    from supervisor.report.reporter import Reporter

#: Half of the time between two pings: a service that answers late has the ping all the same.
PING_DEADLINE_S = 30.0
#: The mirrors have not caught up for this long: an hour of training would be lost with this machine.
MIRROR_BEHIND_S = 3600.0
#: Without a training step for this long the training is treated as not healthy: longer than steps, saves and evaluations take.
STALL_S = 1800.0
_MINUTE = 60.0
_PINGS_FAILED = 3


class AlertWatch:
    """Watches one run. `behind_s` returns for how many seconds the mirrors have not caught up, 0 if they have."""

    def __init__(self, job: Job, reporter: Reporter, behind_s: Callable[[], float]) -> None:
        self._settings = job.settings.alerts
        self._reporter = reporter
        self._behind_s = behind_s
        self.heartbeat: HttpEndpoint | None = None
        self._next_ping_t = 0.0
        self._ping_outcome: Outcome | None = None  # of the newest ping, until it was looked at
        self._pings_failed = 0  # one after the other
        self._without_checkpoint = self._mirror_is_behind = False

    def tick(self, state: JobState, now: float) -> Callable[[], None] | None:
        """Alert what has become so, and return the ping to make now, if one is due."""
        self._watch_checkpoints(state, now)
        self._watch_mirror(state, now)
        self._watch_heartbeat(state)
        self._reporter.alerts.tick(now)
        return self._ping(state, now)

    def _watch_checkpoints(self, state: JobState, now: float) -> None:
        without_s, limit_s = self._reporter.vitals.without_checkpoint_s(state, now), self._settings.no_checkpoint_s
        was_without, self._without_checkpoint = self._without_checkpoint, 0 < limit_s <= without_s
        if self._without_checkpoint and not was_without:
            since = f"for {without_s / _MINUTE:.0f} minutes, since {clock_text(now - without_s)}"
            text = f"no checkpoint was verified {since}; the training continues (alerts.no_checkpoint_s)"
            self._reporter.alerted(Alert("no_checkpoint", state.attempt.number, text))

    def _watch_mirror(self, state: JobState, now: float) -> None:
        behind_s, limit_s = self._behind_s(), MIRROR_BEHIND_S
        was_behind, self._mirror_is_behind = self._mirror_is_behind, limit_s <= behind_s
        if self._mirror_is_behind and not was_behind:
            text = f"the mirror is behind: since {clock_text(now - behind_s)} it never held all checkpoints"
            self._reporter.alerted(Alert("mirror_behind", state.attempt.number, text))
        elif was_behind and not self._mirror_is_behind:
            self._reporter.alert_over("mirror_behind", "the mirror holds all checkpoints again")

    def _watch_heartbeat(self, state: JobState) -> None:
        """Report once that the pings do not arrive: at the first that is refused, and at the third that gets no answer."""
        outcome, self._ping_outcome = self._ping_outcome, None
        if outcome is None or self.heartbeat is None:
            return
        from supervisor.alerts.sinks import Delivered, DeliveryRefused  # noqa: PLC0415 (only where a heartbeat is configured)

        was_failing = self._pings_failed >= _PINGS_FAILED
        if isinstance(outcome, Delivered):
            self._pings_failed = 0
            if was_failing:
                self._reporter.alert_over("heartbeat_failing", f"the dead man's switch takes the pings again ({self.heartbeat.host})")
            return
        self._pings_failed += _PINGS_FAILED if isinstance(outcome, DeliveryRefused) else 1
        if self._pings_failed >= _PINGS_FAILED and not was_failing:
            text = f"the dead man's switch does not take the pings ({self.heartbeat.host}: {outcome.reason}): its alarm will mean nothing"
            self._reporter.alerted(Alert("heartbeat_failing", state.attempt.number, text))

    def _ping(self, state: JobState, now: float) -> Callable[[], None] | None:
        endpoint = self.heartbeat
        if endpoint is None or now < self._next_ping_t:
            return None
        if not self._reporter.vitals.is_healthy(state, now, STALL_S):
            return None
        self._next_ping_t = now + PING_S

        def ping() -> None:
            self._ping_outcome = endpoint.send("", b"", PING_DEADLINE_S)

        return ping
