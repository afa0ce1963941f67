"""The one clock of a job: wall time at our start plus monotonic seconds since.

It never runs backwards within a process, and still compares across restarts of the supervisor, which plain monotonic time does not.
Shared by the loop and whatever turns another process's CLOCK_MONOTONIC into a time of the job.
"""

from __future__ import annotations

import time

from supervisor.core.values import Struct


class Clock(Struct, frozen=True):
    """Seconds since the epoch, unaffected by changes of the wall clock since we started."""

    wall_at_start: float
    monotonic_at_start: float

    @classmethod
    def start(cls) -> Clock:
        """Return a clock that agrees with the wall now."""
        return cls(time.time(), time.monotonic())

    def now(self) -> float:
        """Return the time in seconds."""
        return self.wall_at_start + (time.monotonic() - self.monotonic_at_start)

    def at_monotonic_ns(self, ns: int) -> float:
        """Return the time of a CLOCK_MONOTONIC reading of any process on this machine."""
        return self.wall_at_start + (ns / 1e9 - self.monotonic_at_start)
