"""The median, without the module statistics, whose import takes longer than all of ours: 16 ms of each start."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def median(numbers: Iterable[float]) -> float:
    """Return the middle one, or the mean of the two in the middle. Raises IndexError where there is none."""
    found = sorted(numbers)
    half = len(found) // 2
    return found[half] if len(found) % 2 else (found[half - 1] + found[half]) / 2
