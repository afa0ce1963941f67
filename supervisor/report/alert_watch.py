"""At each tick: sends the notifications that are due, raises the alerts that no event announces, and pings the dead man's switch.

Loop's thread only; the ping itself is for a worker thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervisor.core.actions import Alert

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.alerts.endpoint import HttpEndpoint
    from supervisor.core.state import JobState
    from supervisor.job.job import Job
    from supervisor.report.reporter import Reporter

PING_DEADLINE_S = 5.0
_MINUTE = 60.0


class AlertWatch:
    """Watches one run. `behind_s` returns for how long the mirrors have not caught up."""

    def __init__(self, job: Job, reporter: Reporter, behind_s: Callable[[], float]) -> None:
        self._settings = job.settings.alerts
        self._reporter = reporter
        self._behind_s = behind_s
        self.heartbeat: HttpEndpoint | None = None
        self._next_ping_t = 0.0
        self._raised: dict[str, bool] = {}

    def tick(self, state: JobState, now: float) -> Callable[[], None] | None:
        """Return the ping to make now, if one is due."""
        settings, attempt = self._settings, state.attempt.number
        without_s = self._reporter.vitals.without_checkpoint_s(state, now)
        since = time.strftime("%H:%M:%S", time.localtime(now - without_s))
        text = (
            f"no checkpoint was saved for {without_s / _MINUTE:.0f} minutes, since {since}; the training goes on (alerts.no_checkpoint_s)"
        )
        self._raise("no_checkpoint", 0 < settings.no_checkpoint_s <= without_s, Alert("no_checkpoint", attempt, text))
        behind_s = self._behind_s()
        since = time.strftime("%H:%M:%S", time.localtime(now - behind_s))
        text = f"the mirror is behind: since {since} it never held all checkpoints (alerts.mirror_behind_s)"
        was_behind = self._raised.get("mirror_behind", False)
        self._raise("mirror_behind", 0 < settings.mirror_behind_s <= behind_s, Alert("mirror_behind", attempt, text))
        if was_behind and not self._raised["mirror_behind"]:
            self._reporter.alert_over("mirror_behind", "the mirror holds all checkpoints again")
        self._reporter.alerts.tick(now)
        return self._ping(state, now)

    def _raise(self, kind: str, is_so: bool, alert: Alert) -> None:  # noqa: FBT001 (a fact, not a mode)
        if is_so and not self._raised.get(kind, False):
            self._reporter.alerted(alert)
        self._raised[kind] = is_so

    def _ping(self, state: JobState, now: float) -> Callable[[], None] | None:
        endpoint, settings = self.heartbeat, self._settings
        if endpoint is None or now < self._next_ping_t:
            return None
        if not self._reporter.vitals.is_healthy(state, now, settings.heartbeat_stall_s):
            return None
        self._next_ping_t = now + settings.heartbeat_s

        def ping() -> None:
            endpoint.post("", b"", PING_DEADLINE_S)

        return ping
