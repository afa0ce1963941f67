"""The figures of the bench: the measured value, its aim, and whether it was reached.

In: plain numbers. Out: `Figure` values, which print as one JSON object each. Pure.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure. `result` is reached, not, or not resolved (the measurement was too coarse to tell, which is neither)."""

    name: str
    measured: float
    unit: str
    target: str
    result: str
    detail: dict[str, Any] = field(default_factory=dict)


def at_most(name: str, measured: float, limit: float, unit: str, **detail: object) -> Figure:
    """Judge a figure that should not be above `limit`."""
    return Figure(name, round(measured, 4), unit, f"<= {limit}", "reached" if measured <= limit else "not", detail)


def at_least(name: str, measured: float, limit: float, unit: str, **detail: object) -> Figure:
    """Judge a figure that should not be below `limit`."""
    return Figure(name, round(measured, 4), unit, f">= {limit}", "reached" if measured >= limit else "not", detail)


def bootstrap_95(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean of `values`; the resampling is seeded."""
    generator = random.Random(1)  # noqa: S311  # statistics, not secrets
    means = sorted(statistics.fmean(generator.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]


def ratio_of_pairs(name: str, pairs: Sequence[tuple[float, float]], limit: float, resolution: float, **detail: object) -> Figure:
    """Judge the geometric mean of second/first over pairs.

    Not resolved where the 95 % interval is wider than `resolution`; else reached where the mean is at most `limit`.
    """
    logarithms = [math.log(supervised / plain) for plain, supervised in pairs]
    low, high = (math.exp(bound) for bound in bootstrap_95(logarithms))
    ratio = math.exp(statistics.fmean(logarithms))
    result = "not resolved" if high - low > resolution else "reached" if ratio <= limit else "not"
    interval = {"pairs": len(pairs), "interval_95": [round(low, 4), round(high, 4)]}
    return Figure(name, round(ratio, 4), "ratio", f"<= {limit}, interval <= {resolution}", result, {**interval, **detail})


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of `values` lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
