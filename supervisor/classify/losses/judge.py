"""Judges the numbers of one rank, as they come: a strange change, `times` in a row, is reported once, and its end once.

The judgement of a number depends on those of the same name alone, so that a NaN of one head of a model is not cleared by the other heads.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from supervisor.classify.losses.rules import WINDOW, LossRule, RuleKind
from supervisor.core.numeric import median
from supervisor.core.values import Struct, field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.classify.losses.lines import NumberReading

#: Names of numbers that are judged in one stream; further ones are not.
MOST_NAMES = 64
#: So many prints of one step: the number read is not a step.
MOST_REPEATED = 20
#: A number with fewer digits may stand still by its rounding.
LEAST_DIGITS = 3


class NumberChange(Struct, frozen=True):
    """A strange change of a number, or its end (`is_over`). text: half a sentence for people, without rank and step."""

    rule: LossRule
    name: str
    shown: str
    text: str
    step: int | None = None
    is_over: bool = False


class _Track(Struct):
    """One rule and one name."""

    rule: LossRule
    read: int = 0
    strange: int = 0  # in a row
    reported: bool = False
    good: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    low: float = math.nan
    high: float = math.nan


class NumberJudge:
    """The numbers of one stream of one attempt. `rules`: of each capture of the reader (lines.captures)."""

    def __init__(self, rules: Sequence[Sequence[LossRule]]) -> None:
        """Begin with none."""
        self._rules = rules
        self._tracks: dict[tuple[int, str], tuple[_Track, ...]] = {}
        self._last: dict[tuple[int, str], NumberReading] = {}
        self._repeated: dict[tuple[int, str], int] = {}

    @property
    def names(self) -> int:
        """How many numbers are judged."""
        return len(self._tracks)

    def take(self, reading: NumberReading) -> list[NumberChange]:
        """Return what changes with the next number."""
        key = (reading.capture, reading.name)
        if self._is_again(key, reading):
            return []
        self._last[key] = reading
        tracks = self._tracks.get(key)
        if tracks is None:
            if len(self._tracks) >= MOST_NAMES:
                return []
            of_name = (rule for rule in self._rules[reading.capture] if rule.names is None or rule.names.fullmatch(reading.name))
            tracks = self._tracks[key] = tuple(_Track(rule) for rule in of_name)
        changes = (_judged(track, reading) for track in tracks)
        return [finding for finding in changes if finding is not None]

    def _is_again(self, key: tuple[int, str], reading: NumberReading) -> bool:
        """Whether this is another print of the step before. A bar shows its numbers once more after it has moved on by one."""
        last = self._last.get(key)
        again = last is not None and bool(reading.place) and (reading.place == last.place or _is_of_the_bar(reading, last))
        self._repeated[key] = self._repeated.get(key, 0) + 1 if again else 0
        return again and self._repeated[key] < MOST_REPEATED


def _is_of_the_bar(reading: NumberReading, last: NumberReading) -> bool:
    if not (reading.is_bar and last.is_bar and reading.shown == last.shown):
        return False
    return reading.step is not None and last.step is not None and reading.step - last.step == 1


def _judged(track: _Track, reading: NumberReading) -> NumberChange | None:
    rule = track.rule
    if rule.kind is RuleKind.JUMP and not math.isfinite(reading.value):
        return None  # of other rules
    track.read += 1
    starts = track.read > rule.after and (reading.step is None or reading.step >= rule.from_step)
    text = _strange(track, reading) if starts or rule.kind is RuleKind.NO_PROGRESS else None
    if text is None and rule.kind is RuleKind.JUMP:
        track.good.append(reading.value)
    track.strange = track.strange + 1 if text is not None and starts else 0
    if text is not None and track.strange >= rule.times and not track.reported:
        track.reported = True
        return NumberChange(rule, reading.name, reading.shown, f"{reading.name} {text}", reading.step)
    if text is None and track.reported:
        track.reported = False
        return NumberChange(rule, reading.name, reading.shown, f"{reading.name} is {reading.shown} again", reading.step, is_over=True)
    return None


def _strange(track: _Track, reading: NumberReading) -> str | None:
    """Return the strange change of a number, None for a good one."""
    rule, value = track.rule, reading.value
    if rule.kind is RuleKind.NAN:
        return f"is NaN, {rule.times} times in a row" if math.isnan(value) else None
    if rule.kind is RuleKind.INF:
        return f"is {reading.shown}, {rule.times} times in a row" if math.isinf(value) else None
    if rule.kind is RuleKind.JUMP:
        return _jump(track, value)
    return _standstill(track, reading)


def _jump(track: _Track, value: float) -> str | None:
    good = track.good
    if not good or not math.isfinite(value) or value <= max(good) or min(good) <= 0:
        return None
    middle = median(good)
    return f"jumped to {value:.4g} from about {middle:.4g}" if value > track.rule.threshold * middle else None


def _standstill(track: _Track, reading: NumberReading) -> str | None:
    """Return that the number does not change, from the second equal one on; its rule says how many must be."""
    value, share = reading.value, track.rule.threshold
    is_exact = share > 0 or sum(letter.isdigit() for letter in reading.shown.lstrip("-+0.").partition("e")[0]) >= LEAST_DIGITS
    if not math.isfinite(value) or not is_exact:
        track.low = track.high = math.nan
        return None
    low, high = min(track.low, value), max(track.high, value)
    if not math.isnan(track.low) and high - low <= share * max(abs(low), abs(high)):
        track.low, track.high = low, high
        return f"does not move: {track.rule.times} numbers in a row are {reading.shown}" + ("" if share == 0 else " or nearly so")
    track.low = track.high = value
    return None
