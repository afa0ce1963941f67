"""Compares the losses of the run with faults and of the quiet run, step by step. Pure."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Final

from supervisor.cli.drill.comparison import LEAST_LOSSES, TOLERANCE, LossResult
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The last steps of which the means are compared: a fifth of the common ones, and at least so many.
LEAST_OF_THE_END: Final = 5
#: By how much the means of the end may differ: so many standard deviations of the quiet run's losses there, or this share of their mean.
SPREADS: Final = 2.0
SHARE: Final = 0.05


class LossComparison(Struct, frozen=True):
    """The result, and the report's words."""

    result: LossResult
    text: str


def last_of_each_step(attempts: Iterable[Sequence[tuple[int, float]]]) -> dict[int, float]:
    """Return the loss of each step. attempts: step and loss in turn, for each attempt in turn.

    A later attempt that begins at a step has made it and those after it again: what came of them before was lost.
    """
    losses: dict[int, float] = {}
    for attempt in attempts:
        first = min((step for step, _ in attempt), default=None)
        if first is not None:
            losses = {step: loss for step, loss in losses.items() if step < first} | dict(attempt)
    return losses


def compare(soaked: Mapping[int, float], quiet: Mapping[int, float]) -> LossComparison:
    """Compare the losses by step."""
    common = sorted(soaked.keys() & quiet.keys())
    if len(common) < LEAST_LOSSES:
        why = "the two runs have printed no loss of the same step" if soaked and quiet else "no loss was printed or reported with its step"
        return LossComparison(LossResult.UNKNOWN, f"cannot be compared, because {why}")
    other = [step for step in common if not math.isclose(soaked[step], quiet[step], rel_tol=TOLERANCE)]
    last = common[-1]
    if not other:
        return LossComparison(
            LossResult.SAME, f"the same as in the quiet run at {len(common)} steps, the last {last}: {soaked[last]:.6g} (within 0.01 %)"
        )
    tail = common[-max(LEAST_OF_THE_END, len(common) // 5) :]
    ours, theirs = [soaked[step] for step in tail], [quiet[step] for step in tail]
    mean, quiet_mean = fmean(ours), fmean(theirs)
    values = (
        f"other than in the quiet run from step {other[0]} on; over the last {len(tail)} common steps, to {last},"
        f" {mean:.4g} on average, and {quiet_mean:.4g} there"
    )
    allowed = max(SPREADS * pstdev(theirs), SHARE * abs(quiet_mean))
    if abs(mean - quiet_mean) <= allowed:
        return LossComparison(LossResult.NEAR, f"near: {values}, which may differ by {allowed:.2g}")
    return LossComparison(LossResult.DIFFERENT, f"different: {values}, which may differ by {allowed:.2g}")


def has_steps(attempt: Sequence[tuple[int, float]]) -> bool:
    """Return whether the losses of an attempt have steps that count up, so that they can be compared by step."""
    return len(attempt) >= LEAST_LOSSES and all(step < later for (step, _), (later, _) in pairwise(attempt))


def longest_pair(
    soaked: Mapping[tuple[str, str], Mapping[int, float]], quiet: Mapping[tuple[str, str], Mapping[int, float]]
) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Return the series, of those in both runs, of which the quiet run has the most losses; two empty ones if there is none."""
    key = max(soaked.keys() & quiet.keys(), key=lambda key: (len(quiet[key]), key), default=None)
    return (soaked[key], quiet[key]) if key is not None else ({}, {})
