"""What the losses of a run with faults show beside those of a quiet run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from supervisor.cli.drill.comparison import LossResult
from supervisor.cli.drill.soak.losses import compare, compare_by_step, compare_in_turn, has_steps, last_of_each_step

KEY = ("rank-0.out", "loss")
QUIET = {step: 2.0 / step + 0.1 * math.sin(step) for step in range(1, 101)}


def test_steps_that_were_made_again_count_as_they_were_made_last() -> None:
    first = [(1, 2.0), (2, 1.5), (3, 1.2), (4, 1.1)]
    assert last_of_each_step([first, [(3, 1.3), (4, 1.0), (5, 0.9)]]) == {1: 2.0, 2: 1.5, 3: 1.3, 4: 1.0, 5: 0.9}


def test_steps_that_were_lost_and_not_made_again_do_not_count() -> None:
    assert last_of_each_step([[(1, 2.0), (2, 1.5), (3, 1.2)], [(2, 1.6)]]) == {1: 2.0, 2: 1.6}
    assert last_of_each_step([[], [(1, 2.0)], []]) == {1: 2.0}


def test_equal_losses_are_the_same_training() -> None:
    comparison = compare_by_step({step: loss * 1.00005 for step, loss in QUIET.items() if step <= 80}, QUIET)
    assert comparison.result is LossResult.SAME
    assert comparison.text.startswith("the same as in the quiet run at 80 steps, the last 80: ")


def test_other_data_is_near_within_the_quiet_run_s_own_spread() -> None:
    soaked = {step: loss if step < 50 else loss + 0.05 * math.cos(7 * step) for step, loss in QUIET.items()}
    comparison = compare_by_step(soaked, QUIET)
    assert comparison.result is LossResult.NEAR
    assert "from step 50 on; over the last 20 common steps, to 100" in comparison.text


@pytest.mark.parametrize("change", [1.0, math.nan, -1.0])
def test_losses_beyond_the_spread_or_not_finite_are_different(change: float) -> None:
    comparison = compare_by_step({step: loss + (change if step > 70 else 0.0) for step, loss in QUIET.items()}, QUIET)
    assert comparison.result is LossResult.DIFFERENT
    assert "from step 71 on" in comparison.text


@pytest.mark.parametrize(
    ("soaked", "why"),
    [
        ({}, "no losses were printed or reported"),
        ({KEY: [[(200, 0.1), (201, 0.1)]]}, "the two runs have printed no losses of the same steps"),
        ({KEY: [[(None, 0.1)]]}, "not both runs have printed two losses"),
    ],
)
def test_losses_that_cannot_be_compared_name_the_reason(soaked: Any, why: str) -> None:  # noqa: ANN401  of three shapes
    comparison = compare(soaked, {KEY: [list(QUIET.items())]})
    assert comparison.result is LossResult.UNKNOWN
    assert comparison.text == f"cannot be compared, because {why}"


def test_losses_have_steps_if_these_count_up() -> None:
    assert has_steps([(10, 1.0), (20, 0.9)])
    assert not has_steps([(10, 1.0)])
    assert not has_steps([(None, 1.0), (None, 0.9)])
    assert not has_steps([(1, 1.0), (2, 0.9), (1, 0.8)])  # of an epoch: each begins anew


def test_losses_without_a_step_are_the_same_if_each_attempt_repeats_the_quiet_run() -> None:
    quiet = list(QUIET.values())
    comparison = compare_in_turn([quiet[:40], quiet[30:70], [], quiet[65:80]], quiet)
    assert comparison.result is LossResult.SAME
    assert comparison.text.startswith("the same as in the quiet run: 95 losses of 3 attempts, in its order")


@pytest.mark.parametrize(("change", "result"), [(0.03, LossResult.NEAR), (0.5, LossResult.DIFFERENT)])
def test_losses_without_a_step_are_otherwise_judged_by_the_mean_of_the_end(change: float, result: LossResult) -> None:
    quiet = list(QUIET.values())
    comparison = compare_in_turn([quiet[:40], [loss + change for loss in quiet[30:]]], quiet)
    assert comparison.result is result
    assert "not those of the quiet run in 1 of 2 attempts; over the last 20" in comparison.text


def test_the_longest_series_of_both_runs_is_compared_and_one_with_steps_before_one_without() -> None:
    short, long, no_step = ("rank-0.out", "val_loss"), ("rank-0.out", "loss"), ("rank-1.out", "loss")
    steps = list(QUIET.items())
    soaked = {short: [steps[:5]], long: [steps[:60], steps[40:]], no_step: [[(None, 1.0)] * 300]}
    quiet = {short: [steps[:5]], long: [steps], no_step: [[(None, 1.0)] * 300]}
    assert compare(soaked, quiet).text.startswith("the same as in the quiet run at 100 steps, the last 100")
    assert compare({short: [steps]}, {long: [steps]}).result is LossResult.UNKNOWN
