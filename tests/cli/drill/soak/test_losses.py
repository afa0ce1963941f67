"""What the losses of a run with faults show beside those of a quiet run."""

from __future__ import annotations

import math

import pytest

from supervisor.cli.drill.comparison import LossResult
from supervisor.cli.drill.soak.losses import compare, has_steps, last_of_each_step, longest_pair

QUIET = {step: 2.0 / step + 0.1 * math.sin(step) for step in range(1, 101)}


def test_steps_that_were_made_again_count_as_they_were_made_last() -> None:
    first = [(1, 2.0), (2, 1.5), (3, 1.2), (4, 1.1)]
    assert last_of_each_step([first, [(3, 1.3), (4, 1.0), (5, 0.9)]]) == {1: 2.0, 2: 1.5, 3: 1.3, 4: 1.0, 5: 0.9}


def test_steps_that_were_lost_and_not_made_again_do_not_count() -> None:
    assert last_of_each_step([[(1, 2.0), (2, 1.5), (3, 1.2)], [(2, 1.6)]]) == {1: 2.0, 2: 1.6}
    assert last_of_each_step([[], [(1, 2.0)], []]) == {1: 2.0}


def test_equal_losses_are_the_same_training() -> None:
    comparison = compare({step: loss * 1.00005 for step, loss in QUIET.items() if step <= 80}, QUIET)
    assert comparison.result is LossResult.SAME
    assert comparison.text.startswith("the same as in the quiet run at 80 steps, the last 80: ")


def test_other_data_is_near_within_the_quiet_run_s_own_spread() -> None:
    soaked = {step: loss if step < 50 else loss + 0.05 * math.cos(7 * step) for step, loss in QUIET.items()}
    comparison = compare(soaked, QUIET)
    assert comparison.result is LossResult.NEAR
    assert "from step 50 on; over the last 20 common steps, to 100" in comparison.text


@pytest.mark.parametrize("change", [1.0, math.nan, -1.0])
def test_losses_beyond_the_spread_or_not_finite_are_different(change: float) -> None:
    comparison = compare({step: loss + (change if step > 70 else 0.0) for step, loss in QUIET.items()}, QUIET)
    assert comparison.result is LossResult.DIFFERENT
    assert "from step 71 on" in comparison.text


@pytest.mark.parametrize(
    ("soaked", "why"),
    [({}, "no loss was printed or reported with its step"), ({200: 0.1, 201: 0.1}, "the two runs have printed no loss of")],
)
def test_without_losses_of_the_same_steps_it_says_why_they_cannot_be_compared(soaked: dict[int, float], why: str) -> None:
    comparison = compare(soaked, QUIET)
    assert comparison.result is LossResult.UNKNOWN
    assert comparison.text.startswith(f"cannot be compared, because {why}")


def test_losses_have_steps_if_these_count_up() -> None:
    assert has_steps([(10, 1.0), (20, 0.9)])
    assert not has_steps([(10, 1.0)])
    assert not has_steps([(1, 1.0), (2, 0.9), (1, 0.8)])  # of an epoch: each begins anew


def test_the_longest_series_of_both_runs_is_compared() -> None:
    short, long = ("rank-0.out", "val_loss"), ("rank-0.out", "loss")
    assert longest_pair({short: {1: 1.0}, long: {1: 2.0}}, {short: {1: 1.0}, long: {1: 2.0, 2: 1.9}}) == ({1: 2.0}, {1: 2.0, 2: 1.9})
    assert longest_pair({short: {1: 1.0}}, {long: {1: 2.0}}) == ({}, {})
