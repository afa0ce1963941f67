"""What several packages do with numbers: their median, and the numbers of ranks as text. Pure.

The module statistics has a median too, but its import takes longer than all of ours: 16 ms of each start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def median(numbers: Iterable[float]) -> float:
    """Return the middle one, or the mean of the two in the middle. Raises IndexError where there is none."""
    found = sorted(numbers)
    half = len(found) // 2
    return found[half] if len(found) % 2 else (found[half - 1] + found[half]) / 2


def rank_list(ranks: Iterable[int]) -> str:
    """Return `rank 3`, `ranks 0-2, 5`."""
    numbers = sorted(ranks)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)  # noqa: PLR2004 - a range
    return f"rank {text}" if len(numbers) == 1 else f"ranks {text}"
