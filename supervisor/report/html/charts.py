"""A chart as plain data: `parts.html.j2` draws it. Pure.

Places and lengths are percent of the plot, from its left and its top. The number of shapes in a chart is bounded, however long a job is.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from supervisor.core.values import Struct
from supervisor.job.local_time import local

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Ticks of an axis, about; and a curve of so many points shows each.
_TICKS, _FEW_POINTS = 5, 80
_DAY_S = 86400
#: The ends of an axis of values at most, and its length at least, as a share of the largest value: floats have so many digits.
_LARGEST, _LEAST_SHARE = 1e300, 1e-9
#: Seconds between two ticks of time.
_STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(_DAY_S * days for days in (1, 2, 7, 14, 30, 90, 180, 365)),
)


class Tick(Struct, frozen=True):
    """A tick of an axis, and its label."""

    at: float
    text: str


class Band(Struct, frozen=True):
    """A rectangle. kind: its class, of which the style has the colour. text: the note where a pointer is on it."""

    kind: str
    x: float
    width: float
    y: float = 0.0
    height: float = 100.0
    text: str = ""


class Mark(Struct, frozen=True):
    """A moment: a line from `y` down to `until`, with a dot at its head. kind, text: as a Band's."""

    kind: str
    x: float
    text: str = ""
    y: float = 0.0
    until: float = 100.0
    has_head: bool = True


class LegendEntry(Struct, frozen=True):
    """A row of a legend."""

    kind: str
    text: str


class Chart(Struct, frozen=True):
    """A chart. spoken: its content, for screen readers. height: of the plot, in pixels. lines: points in thousandths.

    Texts of ticks and bands are our own. note: what else there is to know.
    """

    caption: str
    spoken: str
    height: int = 160
    x_title: str = ""
    y_title: str = ""
    x_ticks: tuple[Tick, ...] = ()
    y_ticks: tuple[Tick, ...] = ()
    bands: tuple[Band, ...] = ()
    lines: tuple[tuple[tuple[float, float], ...], ...] = ()
    marks: tuple[Mark, ...] = ()
    legend: tuple[LegendEntry, ...] = ()
    note: str = ""
    is_wide: bool = False

    @property
    def has_points(self) -> bool:
        """Whether each point is seen: there are few."""
        return sum(map(len, self.lines)) <= _FEW_POINTS

    @property
    def has_lines(self) -> bool:
        """Whether the ticks of y are values, not names of rows."""
        return bool(self.lines)


class TimeAxis:
    """The axis of time that the charts of a page share. parts: begin and end of each run, Unix seconds; what lies between is left out."""

    def __init__(self, parts: Sequence[tuple[float, float]]) -> None:
        self._parts = parts
        self._lefts = [0.0]
        for begin_t, end_t in parts:
            self._lefts.append(self._lefts[-1] + max(0.0, end_t - begin_t))
        self.whole_s = self._lefts[-1]

        self._begins_t = [begin_t for begin_t, _ in parts]

    def part(self, t: float) -> int:
        """Return the number of the last run that had begun at a moment."""
        return max(0, bisect_right(self._begins_t, t) - 1)

    def seconds(self, t: float, run: int | None = None) -> float:
        """Return how far from the left a moment is, in seconds. run: its number; None: the last one that had begun."""
        number = self.part(t) if run is None else run
        begin_t, end_t = self._parts[number]
        return self._lefts[number] + min(max(t - begin_t, 0.0), max(0.0, end_t - begin_t))

    def at(self, t: float, run: int | None = None) -> float:
        """Return where a moment is, in percent."""
        return 100 * self.seconds(t, run) / self.whole_s if self.whole_s else 0.0

    @property
    def title(self) -> str:
        """The labels of the axis."""
        zone = local(self._parts[-1][1]).strftime("%z")
        if len(self._parts) > 1:
            return f"begin of each run ({zone}); the time between two runs is left out"
        begin, end = (local(t).date() for t in self._parts[0])
        return f"time of day on {begin} ({zone})" if begin == end else f"time, from {begin} to {end} ({zone})"

    def ticks(self) -> tuple[Tick, ...]:
        """Return the ticks: of one run round times, of several where each begins, as far as there is room."""
        if not self.whole_s:
            return ()
        if len(self._parts) > 1:
            return self._begins()
        (begin_t, end_t) = self._parts[0]
        # a clock that was wrong lets a run last for decades
        step_s = next((step_s for step_s in _STEPS_S if self.whole_s / step_s <= _TICKS), self.whole_s / _TICKS)
        first = math.ceil((begin_t + _zone_s(begin_t)) / step_s)
        rounds = [(first + number) * step_s - _zone_s(begin_t) for number in range(_TICKS + 2)]
        moments = [t + _zone_s(begin_t) - _zone_s(t) for t in rounds]  # a day begins at midnight in summer and in winter
        form = "%d %b" if step_s >= _DAY_S else "%H:%M:%S" if step_s % 60 else "%d %b %H:%M" if self.whole_s > _DAY_S else "%H:%M"
        form = form if step_s <= _STEPS_S[-1] else "%Y"
        return tuple(Tick(self.at(t), local(t).strftime(form)) for t in moments if begin_t <= t <= end_t)

    def _begins(self) -> tuple[Tick, ...]:
        ticks: list[Tick] = []
        for number, (begin_t, _) in enumerate(self._parts):
            at = 100 * self._lefts[number] / self.whole_s
            if not ticks or at - ticks[-1].at > 100 / (_TICKS + 1):
                ticks.append(Tick(at, local(begin_t).strftime("%d %b %H:%M")))
        return tuple(ticks)


def _zone_s(t: float) -> float:
    """Return how far the clocks of this machine's zone are ahead of UTC at a moment, in seconds."""
    offset = local(t).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


class ValueAxis:
    """An axis of numbers from `low` at the bottom to `high` at the top, widened to round ones.

    A loss that runs away comes near the ends of what a float holds: there it is at an end of the axis.
    """

    def __init__(self, low: float, high: float) -> None:
        low, high = (min(max(value, -_LARGEST), _LARGEST) for value in (low, high))
        largest = max(abs(low), abs(high))
        wide = max(high - low, _LEAST_SHARE * largest) if high > low else largest
        raw = (wide if wide > 1 / _LARGEST else 1.0) / (_TICKS - 1)
        unit = 10.0 ** math.floor(math.log10(raw))
        self.step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * (1 - 1e-9))
        self.low, self.high = math.floor(low / self.step + 1e-9) * self.step, math.ceil(high / self.step - 1e-9) * self.step
        self.high = max(self.high, self.low + self.step)

    def at(self, value: float) -> float:
        """Return where a value is, in percent from the top; one that is beyond an end is there."""
        return 100 * (self.high - min(max(value, self.low), self.high)) / (self.high - self.low)

    def ticks(self) -> tuple[Tick, ...]:
        """Return the ticks."""
        count = round((self.high - self.low) / self.step)
        values = [self.low + number * self.step for number in range(count + 1)]
        powers = [math.floor(math.log10(value) + 1e-9) for value in (max(map(abs, values)), self.step)]
        digits = max(4, powers[0] - powers[1] + 1)  # neighbours differ in the last of them
        return tuple(Tick(self.at(value), f"{0.0 if abs(value) < self.step / 1e6 else value:.{digits}g}") for value in values)
