"""How long a job may stand still before a hang is suspected: by its own step times, and by the phase of its ranks. Pure.

The tail of the step times is the 90th percentile and the longest. The 99th percentile misleads: where one step in 50 is followed by an
evaluation, it is the evaluation itself.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from supervisor.core.model import Phase
from supervisor.core.values import Struct
from supervisor.core.watch.hangs import CALIBRATION_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.config.watch_settings import HangSection
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

#: So many of the newest step times count.
KEPT = 1000
QUANTILE = 0.9
TIMES_QUANTILE = 10.0
TIMES_LONGEST = 1.5


class Limit(Struct, frozen=True):
    """How long the ranks may show no sign of life, and the phase that allows it. calibrated: steps of this attempt say so."""

    seconds: float
    phase: Phase
    calibrated: bool


def train_limit(times_s: Sequence[float], longest_s: float, least_s: float) -> float:
    """Return the limit for a training with these step times: an ordinary step ten times over, or half more than the longest."""
    if not times_s:
        return least_s
    usual = sorted(times_s)[math.ceil(QUANTILE * len(times_s)) - 1]
    return max(least_s, TIMES_QUANTILE * usual, TIMES_LONGEST * longest_s)


class StepTimes:
    """The step times of one attempt, as sampled from its heartbeats: one for each sample in which a rank made steps.

    Where no step is seen, the time between two signs of life takes its place: a backward pass or a collective. The first step begins anew.

    The time between two known steps of the same rank counts, of the slowest rank. With steps shorter than the time between
    samples it holds several: an ordinary one is their average, and the longest may have taken all of it. The time before a change of phase
    does not count.
    """

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=KEPT)
        self._longest_s: deque[float] = deque(maxlen=KEPT)
        self._steps = 0
        self._last: dict[int, RankHeartbeat] = {}
        self._limit: tuple[float, float] | None = None  # the least limit, and the limit that follows; None after a new time

    @property
    def calibrated(self) -> bool:
        """Whether there are enough of them."""
        return self._steps >= CALIBRATION_STEPS

    def add(self, beats: Iterable[RankHeartbeat]) -> None:
        """Take one sample of the heartbeats."""
        longest_ns = steps = 0
        for beat in beats:
            last = self._last.get(beat.local_rank)
            if beat.sign_ns is None or (last is not None and last.sign_ns == beat.sign_ns):
                continue
            self._last[beat.local_rank] = beat
            if last is None or last.pid != beat.pid or last.sign_ns is None:
                continue
            if last.last_step_ns is None and beat.last_step_ns is not None:
                self._begin_anew()
                longest_ns = steps = 0
                continue
            began_ns = last.sign_ns if beat.phase_since_ns >= beat.sign_ns else max(last.sign_ns, beat.phase_since_ns)
            longest_ns = max(longest_ns, beat.sign_ns - began_ns)
            # a resumed training continues from a high number: the first number, or one of another source, is not a step
            one_count = beat.step is not None and last.step is not None and beat.step_source == last.step_source
            reported = (beat.step or 0) - (last.step or 0) if one_count else 0
            steps = max(steps, beat.steps - last.steps, reported, 1)
        if longest_ns:
            self._times_s.append(longest_ns / 1e9 / steps)
            self._longest_s.append(longest_ns / 1e9)
            self._limit = None
        self._steps += steps

    def _begin_anew(self) -> None:
        self._times_s.clear()
        self._longest_s.clear()
        self._steps, self._limit = 0, None

    def interrupt(self) -> None:
        """Begin anew after samples were missed: the time until the next one is not a step time."""
        self._last.clear()

    def limit(self, beats: Iterable[RankHeartbeat], limits: HangSection) -> Limit:
        """Return the limit for ranks in these phases: the longest of any, because the others wait for that one."""
        if self._limit is None or self._limit[0] != limits.train_s:
            self._limit = limits.train_s, train_limit(self._times_s, max(self._longest_s, default=0.0), limits.train_s)
        train_s, is_calibrated = self._limit[1], self.calibrated
        phase_s = max(limits.phase_s, train_s)
        limit = Limit(0.0, Phase.UNKNOWN, is_calibrated)
        for beat in beats:
            goes_round = beat.phase is Phase.TRAIN or (beat.rounds and beat.phase is Phase.UNKNOWN)
            seconds = train_s if goes_round and is_calibrated else phase_s
            if beat.phase_limit_s is not None:
                seconds = beat.phase_limit_s
            if seconds > limit.seconds:
                limit = Limit(seconds, beat.phase, is_calibrated)
        return limit
