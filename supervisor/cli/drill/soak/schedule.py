"""Schedules faults by a seed, as many as fit into the hours. Pure.

The time from the moment at which all ranks train again to the next fault is exponential, with a mean of 3600 / rate seconds: faults that
know nothing of each other. The kinds come from a deck with one card of each, which is filled up when no card of it can be played. One seed
gives one sequence of draws; at which step a fault falls depends on the speed of the machine as well.
"""

from __future__ import annotations

import random
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Collection

#: The time of a job's end within the hours, at most a tenth of them.
END_S: Final = 30.0
#: By how much the quiet run may be slower than the new steps of the run with faults were, before it has to end before that run's last step.
QUIET_SLACK: Final = 1.15
#: How much longer than before the job may need to come back from a fault; and of its kind's first one, in starts of the job.
BACK_SLACK: Final = 1.5
FIRST_STARTS: Final = 2.0


class SoakFault(StrEnum):
    """A kind of fault."""

    RANK = "rank"
    AGENT = "agent"
    SUPERVISOR = "supervisor"
    STOP = "stop"
    TORN = "torn"
    LOADER = "loader"
    OOM = "oom"
    DISK = "disk"


class Schedule:
    """The draws of one seed. per_hour: faults for each hour in which the job trains."""

    def __init__(self, seed: int, per_hour: float) -> None:
        self._random, self._mean_s = random.Random(seed), 3600.0 / per_hour  # noqa: S311  a draw that can be repeated, no secret
        self._deck: list[SoakFault] = []

    def gap_s(self) -> float:
        """Return how long the job trains until the next fault, in seconds."""
        return self._random.expovariate(1.0 / self._mean_s)

    def kind(self, possible: Collection[SoakFault]) -> SoakFault | None:
        """Return the next kind among those that are possible now, None if none is."""
        if not possible:
            return None
        while not any(kind in possible for kind in self._deck):
            more = list(SoakFault)
            self._random.shuffle(more)
            self._deck += [kind for kind in more if kind not in self._deck]
        kind = next(kind for kind in self._deck if kind in possible)
        self._deck.remove(kind)
        return kind

    def rank(self, ranks: Collection[int]) -> int:
        """Return one of the ranks."""
        return self._random.choice(sorted(ranks))


class TimeBox(Struct, frozen=True):
    """The hours of a soak, in seconds: the run with faults, and the quiet run after it, which makes the same steps once more.

    first_start_s: what the first start took until all ranks trained. new_steps_s: the time in which steps were made for the first time.
    """

    total_s: float
    first_start_s: float = 0.0
    new_steps_s: float = 0.0

    @property
    def end_s(self) -> float:
        """The time that the ends of the jobs may take."""
        return min(END_S, self.total_s / 10)

    def left_s(self, elapsed_s: float, *, with_quiet_run: bool) -> float:
        """Return how long the run with faults may still continue."""
        quiet_s = (self.first_start_s + self.new_steps_s) * QUIET_SLACK + self.end_s if with_quiet_run else 0.0
        return self.total_s - self.end_s - quiet_s - elapsed_s

    def need_s(self, known_s: float | None, notice_s: float) -> float:
        """Return the time that the job needs to come back from a fault. known_s: its time for one of the kind; notice_s: until notice."""
        return self.first_start_s * FIRST_STARTS + notice_s if known_s is None else known_s * BACK_SLACK
