"""The bench's judgements: reached, not reached, and not resolved."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "bench" / "figures.py"
spec = importlib.util.spec_from_file_location("bench_figures", PATH)
assert spec is not None
assert spec.loader is not None
figures = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = figures  # dataclasses looks its module up there
spec.loader.exec_module(figures)


@pytest.mark.parametrize(
    ("true_ratio", "noise", "result"),
    [(1.00, 0.002, "reached"), (1.05, 0.002, "not"), (1.00, 0.10, "not resolved"), (1.05, 0.10, "not resolved")],
)
def test_a_ratio_is_judged_only_where_its_interval_is_narrow(true_ratio: float, noise: float, result: str) -> None:
    generator = random.Random(3)  # noqa: S311  # made-up measurements
    pairs = [(plain := generator.uniform(0.9, 1.1), plain * true_ratio * (1 + generator.gauss(0, noise))) for _ in range(20)]
    figure = figures.ratio_of_pairs("r", pairs, 1.02, 0.02)
    assert figure.result == result
    low, high = figure.detail["interval_95"]
    assert low <= figure.measured <= high


def test_at_most_counts_the_limit_as_reached() -> None:
    assert figures.at_most("f", 12.0, 12.0, "MiB").result == "reached"
    assert figures.at_most("f", 12.1, 12.0, "MiB").result == "not"


def test_quantile_is_the_nearest_rank() -> None:
    assert figures.quantile(list(range(100)), 0.99) == 99
    assert figures.quantile([5.0], 0.5) == 5.0
