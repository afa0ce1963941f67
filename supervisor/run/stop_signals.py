"""Signals to the supervisor become events: a request to stop, with the time that the environment leaves, or a request for stacks.

core/signals.py has what each signal means (SIGTERM and the others), core/stop.py when the ranks end. A request has the time at which its
signal came: a loop that is busy for a moment would else take two signals for one that came twice.

The handler runs no Python code, because TERMs that come faster than a handler runs would nest in it without end. Python writes each
signal's number into a pipe (signal.set_wakeup_fd), and a thread reads it.
"""

from __future__ import annotations

import operator
import os
import signal
import threading
from typing import TYPE_CHECKING

from supervisor.core.events import StacksRequested, StopRequested, TimeLeft
from supervisor.core.signals import SIGNALS, asks_end
from supervisor.run import kill_deadline

if TYPE_CHECKING:
    from collections.abc import Collection

    from supervisor.job.job import Job
    from supervisor.run.loop import Loop
    from supervisor.run.threads import Threads

#: Signals by which somebody asks us to stop.
STOPS = tuple(signum for row in SIGNALS.values() for signum in row.signals)


class StopSignals:
    """Turns signals into events of one run. `ignored`: those that were ignored when we were started stay so.

    requested: a stop was requested. The state learns that only when the loop runs, and work before that must end too.
    received: the signals of all requests. They shorten waits after the loop has ended.
    """

    def __init__(self, job: Job, loop: Loop, threads: Threads, ignored: Collection[int]) -> None:
        self._job = job
        self._loop = loop
        self._threads = threads
        self._ignored = ignored
        self.requested = threading.Event()
        self.received: list[int] = []

    def catch(self) -> None:
        """Take signals from now on. Only from the main thread."""
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
        for signum in (*(signum for signum in STOPS if signum not in self._ignored), signal.SIGQUIT):
            signal.signal(signum, operator.is_)
        threading.Thread(target=self._read, args=(reads,), name="signals", daemon=True).start()

    def ignore(self) -> None:
        """Take no more: handlers end with the interpreter, before the process does, and one more TERM would be its exit status."""
        for signum in STOPS:
            signal.signal(signum, signal.SIG_IGN)

    def request_stop(self, signum: int) -> None:
        """Request a stop, from any thread. The loop posts it, and so never before SupervisorStarted."""
        t = self._loop.clock.now()
        self.received.append(signum)
        self.requested.set()
        self._loop.call_soon(lambda: self._post(signum, t))

    def _read(self, reads: int) -> None:
        while received := os.read(reads, 4096):
            for signum in dict.fromkeys(received):
                if signum == signal.SIGQUIT:
                    self._loop.post(StacksRequested(self._loop.clock.now()))
                else:
                    self.request_stop(signum)

    def _post(self, signum: int, t: float) -> None:
        """Post the request, with the time that is left. Where a tool must be asked for that time, the answer comes later.

        The request waits for no tool: a scheduler signals the ranks as well, and they may be gone a moment later.
        """
        environ, settings, clock = self._job.environ, self._job.settings, self._loop.clock
        if not kill_deadline.must_ask(signum, environ, settings):
            self._loop.post(StopRequested(t, signum, kill_deadline.left_s(signum, environ, settings)))
            return
        stop = self._loop.state.run.stop
        asks = stop is None or not asks_end(stop)  # a further request only hurries, and needs no time
        self._loop.post(StopRequested(t, signum, time_left_follows=asks))

        def ask() -> None:
            left_s = kill_deadline.left_s(signum, environ, settings)
            self._loop.post(TimeLeft(clock.now(), left_s, signum))

        if asks:
            self._threads.start("left", ask, awaited=False)  # the core has a timer for it
