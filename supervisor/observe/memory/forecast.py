"""When an amount of memory will be used up, by how its use grew so far. Pure, but for the samples that it keeps.

Most programs grow and do no harm: they warm up, fill a cache, hold an epoch's data and free it, or grow in steps. So a forecast is made
only where all of this holds of a window of samples, and no growth is extended further than half of the time for which it was seen:

    it is steady    each of six parts of the window lies above the one before it, by a third of the mean rise at least, and the second
                    half rises no less than three quarters of what the first half rose
    it is new       the end of the window lies above all that was used before the window: a cache that is freed comes back to where it was
    it is near      the rest will last for no longer than half of the window

The growth is the median of the slopes between all pairs of samples (Theil and Sen), which a third of outliers does not move. Samples are
taken in training only. Six lists hold them, each six times as coarse as the one before it: the last 20 minutes, 2 hours, ... 108 days.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import combinations, pairwise
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Final

from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

_LISTS, _COARSER, _MOST = 6, 6, 120
#: Lengths of the windows that are looked at, in samples of one list; and the parts of a window.
_WINDOWS: Final = (36, 48, 64, 90, 120)
_PARTS: Final = 6
_LEAST_RISE, _LEAST_SECOND_HALF = 1 / 3, 0.75
#: The share of the window's time that the rest may last.
_NEAR = 0.5
#: No forecast is more certain than this share of the time that is left.
_LEAST_DOUBT = 0.1


class MemorySample(Struct, frozen=True, array_like=True):
    """How much was used at a time (seconds), and after which step; step None: not known. most: of the samples that it sums up."""

    t: float
    used: float
    step: float | None = None
    most: float = 0.0


class TrendForecast(Struct, frozen=True):
    """When the memory is used up: in `left_s` seconds, as much more or less as `doubt_s`. growth: bytes a second.

    window_s: for how long it has grown so. step: the training's step by then.
    """

    left_s: float
    doubt_s: float
    growth: float
    window_s: float
    step: int | None = None


class MemoryTrend:
    """The use of one amount of memory. `take` a sample at even intervals, in training; `forecast` against the limit."""

    def __init__(self) -> None:
        """Begin with no sample."""
        self._lists: tuple[deque[MemorySample], ...] = tuple(deque(maxlen=_MOST) for _ in range(_LISTS))
        self._pending: tuple[list[MemorySample], ...] = tuple([] for _ in range(_LISTS))

    def take(self, sample: MemorySample) -> None:
        """Add the newest sample."""
        sample = replace(sample, most=sample.used)
        for samples, pending in zip(self._lists, self._pending, strict=True):
            samples.append(sample)
            pending.append(sample)
            if len(pending) < _COARSER:
                return
            used, most = median(older.used for older in pending), max(older.most for older in pending)
            sample = MemorySample(pending[-1].t, used, pending[-1].step, most)
            pending.clear()

    def forecast(self, limit: float) -> TrendForecast | None:
        """Return when `limit` bytes are used up, by the longest window that shows it; None: it is not in sight."""
        for samples in reversed(self._lists):
            for length in reversed(_WINDOWS):
                if len(samples) >= length and (forecast := self._by(list(samples)[-length:], limit)) is not None:
                    return forecast
        return None

    @property
    def known_s(self) -> float:
        """For how many seconds the use is known."""
        known = [samples[-1].t - samples[0].t for samples in self._lists if samples]
        return max(known, default=0.0)

    def grown(self, within_s: float) -> float:
        """Return by how many bytes the use grew in the last `within_s` seconds, or for as long as it is known."""
        reaching = (samples for samples in self._lists if samples and samples[-1].t - samples[0].t >= within_s)
        samples = next(reaching, max(self._lists, key=lambda samples: samples[-1].t - samples[0].t if samples else -1.0))
        window = [sample for sample in samples if sample.t >= samples[-1].t - within_s]
        third = max(1, len(window) // 3)
        if len(window) <= third:
            return 0.0
        rise = median(s.used for s in window[-third:]) - median(s.used for s in window[:third])
        return rise * len(window) / (len(window) - third)

    def _newest(self) -> list[MemorySample]:
        """Return the newest samples: a sixth of the finest list."""
        return list(self._lists[0])[-_MOST // _PARTS :]

    def _by(self, window: Sequence[MemorySample], limit: float) -> TrendForecast | None:
        size = len(window) // _PARTS
        parts = [median(sample.used for sample in window[at * size : (at + 1) * size]) for at in range(_PARTS)]
        rises = [later - earlier for earlier, later in pairwise(parts)]
        typical = mean(rises)
        if typical <= 0 or min(rises) < _LEAST_RISE * typical or sum(rises[-2:]) < _LEAST_SECOND_HALF * sum(rises[:2]):
            return None
        first, last = window[0], window[-1]
        if parts[-1] <= max((sample.used for samples in self._lists for sample in samples if sample.t < first.t), default=-math.inf):
            return None
        growth = _slope(window)
        window_s = last.t - first.t
        now = self._lists[0][-1].t  # a coarse list ends earlier
        levels, newest = ([sample.most - growth * (sample.t - now) for sample in samples] for samples in (window, self._newest()))
        left_s = max(0.0, limit - max(*levels, *newest)) / growth if growth > 0 else math.inf
        if left_s > _NEAR * window_s or max(newest) < min(levels):  # it was freed since
            return None
        doubt_s = max(left_s * max(_LEAST_DOUBT, 2 * stdev(rises) / math.sqrt(len(rises)) / typical), stdev(levels) / growth)
        return TrendForecast(left_s, doubt_s, growth, window_s, _step_at(window, now + left_s))


def _step_at(window: Sequence[MemorySample], t: float) -> int | None:
    """Return the step at a time after the window, at the pace of the window; None: it is not known."""
    known = [(sample.t, sample.step) for sample in window if sample.step is not None]
    if len(known) < 2 or known[-1][1] <= known[0][1]:  # noqa: PLR2004  a pace
        return None
    (first_t, first), (last_t, last) = known[0], known[-1]
    return round(last + (t - last_t) * (last - first) / (last_t - first_t))


def _slope(window: Sequence[MemorySample]) -> float:
    """Return the median slope of all pairs."""
    return median((b.used - a.used) / (b.t - a.t) for a, b in combinations(window, 2) if b.t > a.t)
