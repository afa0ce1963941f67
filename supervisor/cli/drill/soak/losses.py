"""Compares the losses of the run with faults and of the quiet run. Pure."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Final

from supervisor.cli.drill.comparison import LEAST_LOSSES, LossComparison, LossResult, is_run, is_same

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    #: Step and loss in turn; None: it was printed without its step.
    Attempt = Sequence[tuple[int | None, float]]
    #: The attempts in turn, by where the losses were printed or who reported them.
    Series = Mapping[tuple[str, str], Sequence[Attempt]]

#: The last steps of which the means are compared: a fifth of the common ones, and at least so many.
LEAST_OF_THE_END: Final = 5
#: By how much the means of the end may differ: so many standard deviations of the quiet run's losses there, or this share of their mean.
SPREADS: Final = 2.0
SHARE: Final = 0.05


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


def compare(soaked: Series, quiet: Series) -> LossComparison:
    """Compare the losses of both runs: by step where they have one, else in turn. The longest series of the quiet run that is in both."""
    keys = sorted(soaked.keys() & quiet.keys(), key=lambda key: sum(map(len, quiet[key])), reverse=True)
    with_steps = next((key for key in keys if any(map(has_steps, soaked[key])) and any(map(has_steps, quiet[key]))), None)
    if with_steps is not None:
        return compare_by_step(last_of_each_step(map(_stepped, soaked[with_steps])), last_of_each_step(map(_stepped, quiet[with_steps])))
    if keys:
        attempts = [[loss for _, loss in attempt] for attempt in soaked[keys[0]]]
        return compare_in_turn(attempts, [loss for attempt in quiet[keys[0]] for _, loss in attempt])
    return unknown("no losses were printed or reported")


def compare_by_step(soaked: Mapping[int, float], quiet: Mapping[int, float]) -> LossComparison:
    """Compare the losses of the same steps."""
    common = sorted(soaked.keys() & quiet.keys())
    if len(common) < LEAST_LOSSES:
        return unknown("the two runs have printed no losses of the same steps")
    other = [step for step in common if not is_same(soaked[step], quiet[step])]
    last = common[-1]
    if not other:
        return LossComparison(
            LossResult.SAME, f"the same as in the quiet run at {len(common)} steps, the last {last}: {soaked[last]:.6g} (within 0.01 %)"
        )
    tail = common[-max(LEAST_OF_THE_END, len(common) // 5) :]
    where = f"not those of the quiet run from step {other[0]} on; over the last {len(tail)} common steps, to {last},"
    return _compare_means([soaked[step] for step in tail], [quiet[step] for step in tail], where)


def compare_in_turn(attempts: Sequence[Sequence[float]], quiet: Sequence[float]) -> LossComparison:
    """Compare losses without a step: those of each attempt have to stand in the quiet run in the same order."""
    long = [attempt for attempt in attempts if len(attempt) >= LEAST_LOSSES]
    if not long or len(quiet) < LEAST_LOSSES:
        return unknown("not both runs have printed two losses")
    others = [attempt for attempt in long if not _stands_in(quiet, attempt)]
    if not others:
        count = sum(map(len, long))
        return LossComparison(
            LossResult.SAME, f"the same as in the quiet run: {count} losses of {len(long)} attempts, in its order (within 0.01 %)"
        )
    size = max(LEAST_OF_THE_END, len(quiet) // 5)
    where = f"not those of the quiet run in {len(others)} of {len(long)} attempts; over the last {size}, which have no step beside them,"
    return _compare_means(long[-1][-size:], quiet[-size:], where)


def _stands_in(quiet: Sequence[float], attempt: Sequence[float]) -> bool:
    begins = (start for start in range(len(quiet) - LEAST_LOSSES + 1) if is_same(quiet[start], attempt[0]))
    return any(is_run(quiet[start:], attempt) for start in begins)


def unknown(why: str) -> LossComparison:
    """Return that the losses cannot be compared, and why."""
    return LossComparison(LossResult.UNKNOWN, f"cannot be compared, because {why}")


def _compare_means(soaked: Sequence[float], quiet: Sequence[float], where: str) -> LossComparison:
    mean, quiet_mean = fmean(soaked), fmean(quiet)
    allowed = max(SPREADS * pstdev(quiet), SHARE * abs(quiet_mean))
    is_near = abs(mean - quiet_mean) <= allowed
    text = f"{where} {mean:.4g} on average, and {quiet_mean:.4g} there, which may differ by {allowed:.2g}"
    return LossComparison(LossResult.NEAR if is_near else LossResult.DIFFERENT, f"{'near' if is_near else 'different'}: {text}")


def _stepped(attempt: Attempt) -> list[tuple[int, float]]:
    return [(step, loss) for step, loss in attempt if step is not None]


def has_steps(attempt: Attempt) -> bool:
    """Return whether the losses of an attempt have steps that count up, so that they can be compared by step."""
    stepped = _stepped(attempt)
    return len(stepped) >= LEAST_LOSSES and all(step < later for (step, _), (later, _) in pairwise(stepped))
