"""Functions of numbers that several packages share: their median, and the numbers of ranks as text. Pure.

The module statistics has a median too, but its import takes longer than all modules of supervise: 16 ms of each start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Ranks, or rows of them, that a text names one by one.
_MOST_RUNS = 8


def median(numbers: Iterable[float]) -> float:
    """Return the middle one, or the mean of the two in the middle. Raises IndexError where there is none."""
    ordered = sorted(numbers)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def rank_list(ranks: Iterable[int]) -> str:
    """Return `rank 3`, `ranks 0-2, 5`; of many the first, and how many more there are: `ranks 0, 2, 4, 6, 8, 10, 12, 14 and 492 more`."""
    numbers = sorted(ranks)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    more = sum(map(len, runs[_MOST_RUNS:]))
    runs = runs[:_MOST_RUNS]
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)  # noqa: PLR2004 - a range
    text += f" and {more} more" if more else ""
    return f"rank {text}" if len(numbers) == 1 else f"ranks {text}"
