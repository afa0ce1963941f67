"""Every file is in one part, and no part is much heavier than another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.shards import dealt


@pytest.mark.parametrize("parts", [1, 3, 4])
def test_each_file_is_dealt_to_one_part_of_about_the_same_weight(parts: int) -> None:
    weights = {Path(f"test_{number}.py"): 1.0 + number % 7 for number in range(50)}
    shards = dealt(weights, parts)
    assert sorted(path for shard in shards for path in shard) == sorted(weights)
    sums = [sum(weights[path] for path in shard) for shard in shards]
    assert max(sums) - min(sums) <= max(weights.values())
    assert dealt(dict(reversed(weights.items())), parts) == shards, "the order of collection is all one"
