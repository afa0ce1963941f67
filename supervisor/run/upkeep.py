"""Does what recurs while a run lasts: the lease of the lock, systemd's watchdog, the record of the job's processes, the alerts' clock.

Loop's thread only; what may block is done by a worker thread.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

from supervisor.core.state import Stage
from supervisor.report import unit_status
from supervisor.report.log_events import LogEvent

if TYPE_CHECKING:
    from supervisor.config.settings import Settings
    from supervisor.job.loop_beat import LoopBeat
    from supervisor.job.sd_notify import Notifier
    from supervisor.report.alert_watch import AlertWatch
    from supervisor.report.event_log import EventLog
    from supervisor.run.executor import Executor
    from supervisor.run.factory import JobFactory
    from supervisor.run.lock import Lock
    from supervisor.run.loop import Loop
    from supervisor.run.stop_signals import StopSignals

LEASE_REFRESH_S = 10.0
#: How often the job's processes are recorded, in case supervisor and guardian are killed at the same instant.
RECORD_S = 5.0
#: And at least so long apart. A command may start its ranks itself: they are found soon while the attempt is young.
RECORD_SOON_S = 1.0
#: How often the loop shows that it turns.
BEAT_S = 1.0


def record_pause_s(age_s: float) -> float:
    """Return how long to wait until the processes of an attempt of this age are recorded again."""
    return min(RECORD_S, max(RECORD_SOON_S, age_s / 4))


class Upkeep:
    """The recurring work of one run."""

    def __init__(  # noqa: PLR0913 (the parts that it keeps up)
        self,
        loop: Loop,
        executor: Executor,
        factory: JobFactory,
        *,
        held: Lock,
        signals: StopSignals,
        notifier: Notifier,
        alert_watch: AlertWatch,
        log: EventLog,
        settings: Settings,
        loop_beat: LoopBeat,
    ) -> None:
        self._loop = loop
        self._executor = executor
        self._factory = factory
        self._held = held
        self._signals = signals
        self._notifier = notifier
        self._alert_watch = alert_watch
        self._log = log
        self._settings = settings
        self._loop_beat = loop_beat
        self._next_refresh = self._next_ping = self._next_record = self._next_beat = 0.0
        self._recorded_attempt, self._recorded_from = 0, 0.0
        self._renewing: threading.Thread | None = None

    def tick(self) -> None:
        """Do the work that is due, several times a second while the loop runs."""
        now, threads, state = self._loop.clock.now(), self._executor.threads, self._loop.state
        if ping := self._alert_watch.tick(state, now):
            threads.recur("heartbeat", ping)
        self._ping_systemd(now)
        self._beat(now)
        if now >= self._next_refresh:
            self._next_refresh = now + LEASE_REFRESH_S
            threads.recur("lease", self._refresh_lock)
        attempt = state.attempt.number
        is_new = state.stage is Stage.RUNNING and self._recorded_attempt != attempt
        if is_new:
            self._recorded_attempt, self._recorded_from = attempt, now
        if is_new or now >= self._next_record:
            self._next_record = now + record_pause_s(now - self._recorded_from)
            threads.recur("processes", self._record_processes)

    def without_the_loop(self) -> None:
        """Renew the lock's lease and ping systemd, before the loop runs and after it."""
        now = self._loop.clock.now()
        self._ping_systemd(now)
        self._beat(now)
        if now >= self._next_refresh and not (self._renewing is not None and self._renewing.is_alive()):
            self._next_refresh = now + LEASE_REFRESH_S
            # not by `threads`, which needs the loop to try again; and in a thread, because a directory may hang
            self._renewing = threading.Thread(target=self._refresh_lock, name="lease", daemon=True)
            with contextlib.suppress(RuntimeError):
                self._renewing.start()

    def _beat(self, now: float) -> None:
        """Show for `supervise status --probe` that the loop turns, and whether the ranks train; in a thread where that takes a disk."""
        if now < self._next_beat:
            return
        self._next_beat = now + BEAT_S
        state = self._loop.state
        trains = state.attempt.trains or unit_status.is_overdue(state.attempt, now) or not self._settings.instrument.enabled
        ready = state.stage is Stage.RUNNING and trains
        if self._loop_beat.is_in_memory:
            self._loop_beat.beat(ready=ready)
        else:
            self._executor.threads.recur("beat", lambda: self._loop_beat.beat(ready=ready))

    def _ping_systemd(self, now: float) -> None:
        """Ping the watchdog; ask for more time while the ranks are waited for: what a start may take is for our own settings to limit."""
        if now < self._next_ping:
            return
        interval_s = self._notifier.watchdog_interval_s() or LEASE_REFRESH_S
        self._next_ping = now + interval_s
        self._notifier.ping()
        if not self._notifier.is_ready and self._loop.state.run.stop is None:
            self._notifier.extend_timeout(3 * interval_s)

    def _record_processes(self) -> None:
        guardian = self._executor.guardian_pid
        with contextlib.suppress(OSError):
            if guardian is not None:
                self._executor.watch.add_descendants(self._factory.record_descendants(guardian))

    def _refresh_lock(self) -> None:
        with contextlib.suppress(OSError):
            if not self._held.refresh():
                self._log.write(LogEvent.LOCK_LOST, "error")
                self._signals.request_stop(signal.SIGTERM)
