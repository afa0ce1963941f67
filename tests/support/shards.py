"""How the files of a long run are dealt to its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def dealt(weights: dict[Path, float], parts: int) -> list[set[Path]]:
    """Deal files to parts of about the same weight: the heaviest first, each to the lightest part. The same for each call."""
    shards: list[set[Path]] = [set() for _ in range(parts)]
    sums = [0.0] * parts
    for path in sorted(weights, key=lambda path: (-weights[path], path)):
        lightest = sums.index(min(sums))
        shards[lightest].add(path)
        sums[lightest] += weights[path]
    return shards
