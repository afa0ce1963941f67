"""Compares a resumed attempt with the attempt before it: which checkpoint it loaded, and whether it printed the same losses.

The first attempt trains on after its save, so the resumed attempt makes these steps again. If weights, optimizer, data and randomness went
on, its losses are a run of those of the first attempt. The run is looked for by its values: a script that prints no steps can be compared,
and a seeded script that begins from scratch is known by a run that begins with the first loss.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from supervisor.core.values import Struct
from supervisor.report.layout import Tone

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Fewer losses show nothing.
LEAST_LOSSES = 2
#: The share by which equal losses may differ: float32 sums in another order differ by less.
TOLERANCE = 1e-4
#: The losses of which a mean is made.
_MEAN_OF = 5
#: So many losses before or after the save the first one of the resumed attempt is looked for.
_NEAR_THE_SAVE = 3


class LossResult(Enum):
    """The result of the resumed attempt's losses. NEAR: other data or randomness, and yet no start from scratch."""

    SAME = auto()
    NEAR = auto()
    DIFFERENT = auto()
    UNKNOWN = auto()


class LossComparison(Struct, frozen=True):
    """A comparison of the losses of two attempts, or of two runs, and the report's words."""

    result: LossResult
    text: str
    has_repeated: bool = True  # False: no loss was printed twice, so whether data and randomness continued is unknown


class ResumeComparison(Struct, frozen=True):
    """The result. loaded: which checkpoint of the first attempt was loaded, in words; "" for none."""

    loaded: str
    losses: LossComparison

    @property
    def is_proven(self) -> bool:
        """Whether the training continued: by its losses alone, or by its load and losses that do not contradict."""
        return self.losses.result is LossResult.SAME or (bool(self.loaded) and self.losses.result is LossResult.NEAR)

    @property
    def outcome(self) -> tuple[str, Tone]:
        """The proven facts, in words: no more than was shown."""
        if not self.is_proven:
            return "no", Tone.BAD
        if self.losses.result is LossResult.SAME:
            return "yes", Tone.GOOD
        rest = "the data or the randomness begins anew" if self.losses.has_repeated else "whether data and randomness continue is unknown"
        return f"in part: the checkpoint is loaded and the loss continues near it; {rest}", Tone.WARNING

    @property
    def proven_parts(self) -> tuple[str, ...]:
        """The names of the proven facts."""
        return (*(("checkpoint",) if self.loaded else ()), *(("losses",) if self.losses.result is LossResult.SAME else ()))


def compare(loaded: str, before: Sequence[float], after: Sequence[float], saved_at: int) -> ResumeComparison:
    """Compare two attempts.

    loaded: the words for the checkpoint that was loaded, "" for none. before, after: the losses of the first and of the resumed attempt, in
    turn. saved_at: how many losses the first attempt had printed at its last save.
    """
    result, text = _compare_losses(before, after, saved_at)
    has_repeated = len(before) - saved_at >= LEAST_LOSSES
    if result is LossResult.NEAR:
        few = f"not compared: print more than {LEAST_LOSSES} losses from one save to the next"
        text = f"not the same, but {text}: other data or randomness" if has_repeated else f"{text}; {few}"
    return ResumeComparison(loaded, LossComparison(result, text, has_repeated))


def _compare_losses(before: Sequence[float], after: Sequence[float], saved_at: int) -> tuple[LossResult, str]:
    if min(len(before), len(after)) < LEAST_LOSSES:
        return LossResult.UNKNOWN, "not shown: both attempts have to print or report the loss of several steps"
    runs = [start for start in range(len(before) - LEAST_LOSSES + 1) if is_run(before[start:], after)]
    if 0 in runs:
        changed = not all(is_same(loss, next_loss) for loss, next_loss in pairwise(before))
        why = "it started from scratch" if changed else "the training had changed nothing by the save"
        return LossResult.DIFFERENT, f"those of the beginning: {why}"
    if runs:
        return LossResult.SAME, f"the same {min(len(after), len(before) - runs[0])} as in the first attempt"
    if any(is_same(loss, after[0]) for loss in before[max(1, saved_at - _NEAR_THE_SAVE) : saved_at + _NEAR_THE_SAVE]):
        return (
            LossResult.DIFFERENT,
            f"the first is the same, the next is {after[1]:.6g}: the optimizer's state (momentum and the like), or the data, was lost",
        )
    begin, end, resumed = fmean(before[:_MEAN_OF]), fmean(before[-_MEAN_OF:]), fmean(after[:_MEAN_OF])
    # of a loss that moves fast the next ones lie beyond those before the kill; a start from scratch does not begin there
    goes_further = len(before) - saved_at < LEAST_LOSSES and (end - begin) * (resumed - end) > 0
    if abs(resumed - end) < abs(begin - end) / 2 or goes_further:
        return LossResult.NEAR, f"near: {resumed:.4g} on average, {end:.4g} before the kill"
    return LossResult.DIFFERENT, f"different: {resumed:.4g} on average; the first attempt began with {begin:.4g} and came to {end:.4g}"


def is_run(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return whether one sequence begins with all of the other."""
    return all(is_same(loss, resumed) for loss, resumed in zip(before, after, strict=False))


def is_same(loss: float, other: float) -> bool:
    """Return whether two losses are equal but for the order of float32 sums."""
    return math.isclose(loss, other, rel_tol=TOLERANCE)
