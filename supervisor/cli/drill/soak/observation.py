"""A soak's view of one job from outside: its ranks, its new steps, the losses of each step, and supervise's decisions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from supervisor.cli.drill.attempt_losses import AttemptLosses
from supervisor.cli.drill.comparison import LEAST_LOSSES
from supervisor.cli.drill.drilled_job import is_alive

if TYPE_CHECKING:
    from supervisor.cli.drill.drilled_job import DrilledJob
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

#: Between two readings of the journal for how an attempt began.
_JOURNAL_EVERY_S: Final = 1.0


class Observation:
    """One job. `look` is to be called often.

    top: the highest step that was reached. new_steps_s: the seconds in which steps were made for the first time. A step is the number at
    which supervise saw the attempt begin, and the steps since.
    """

    def __init__(self, job: DrilledJob) -> None:
        self._job = job
        self.top = 0
        self.new_steps_s = 0.0
        self.is_disturbed = False  # a fault is in the job: its time makes no new steps
        self._attempts: dict[tuple[int, int], AttemptLosses] = {}  # by the starts of the job, and the attempt
        self._starts = 0
        self._beginnings: dict[tuple[int, int], int] = {}  # the step at which an attempt began
        self._start_t = time.time()
        self._looked_at = 0.0
        self._last: tuple[tuple[int, int], int, float] | None = None  # attempt, step, and when it was first seen

    def start(self) -> None:
        """Start the job, for the first time or again."""
        self._starts, self._start_t = self._starts + 1, time.time()
        self._job.start()

    # --- the ranks

    def beats(self) -> list[RankHeartbeat]:
        """Return the heartbeats of the ranks that live."""
        return [beat for beat in self._job.beats() if is_alive(beat)]

    def all_train(self) -> bool:
        """Return whether each rank has made a step."""
        beats = self.beats()
        return bool(beats) and all(beat.steps for beat in beats) and len(beats) >= max(beat.world or 1 for beat in beats)

    def step(self) -> int | None:
        """Return the step of the attempt's fastest rank, None where it is not known at which step the attempt began."""
        began, beats = self.beginning(), self._job.beats()
        return None if began is None or not beats else began + max(beat.steps for beat in beats)

    def beginning(self) -> int | None:
        """Return the step at which the newest attempt began, None where supervise has not reported it yet."""
        key = self._key()
        if key not in self._beginnings and time.monotonic() - self._looked_at > _JOURNAL_EVERY_S:
            self._looked_at = time.monotonic()
            resumed_t, resumed = self._job.view().resumed or (0.0, None)
            if resumed is not None and resumed_t >= self._start_t:
                self._beginnings[self._starts, resumed.attempt] = resumed.step or 0
        return self._beginnings.get(key)

    def look(self) -> None:
        """Read the losses that are new, and count the time of new steps."""
        key, now = self._key(), time.monotonic()
        if key not in self._attempts:
            self._attempts[key] = AttemptLosses(self._job.log_dir(key[1]), self._job.attempt_dir(key[1]) / "heartbeat")
        self._attempts[key].read()
        step = self.step() if self.beats() else None
        if step is None or (self._last is not None and self._last[:2] == (key, step)):
            return
        if self._last is not None and self._last[0] == key and step > self.top and not self.is_disturbed:
            self.new_steps_s += now - self._last[2]
        self.top, self._last = max(self.top, step), (key, step, now)

    def _key(self) -> tuple[int, int]:
        return self._starts, self._job.newest_attempt()

    # --- the losses

    @property
    def has_losses(self) -> bool:
        """Return whether losses were seen that can be compared with those of another run."""
        return any(len(series) >= LEAST_LOSSES for attempt in self._attempts.values() for series in attempt.series.values())

    def losses(self) -> dict[tuple[str, str], list[list[tuple[int | None, float]]]]:
        """Return the losses of each attempt, by where they were printed or who reported them."""
        keys = {key: None for attempt in self._attempts.values() for key in attempt.series}
        return {key: [attempt.with_steps(key) for attempt in self._attempts.values()] for key in keys}
