"""Reads how far a training is from its output: `step 10/120`, `Epoch [1/3], Step [100/600]`, a progress bar. Pure.

step 10/120 loss 4.11      iteration       10/     120 |       Epoch: [0][ 10/196]  Loss 2.1      8%|▊  | 10/120 [00:05<01:00
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.expressions import expression
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST = 4096
_EPOCH = expression(r"(?i)\bepochs?\b[\"']?\s{0,3}[:=#]?\s{0,3}[\[(]?\s{0,6}(\d{1,6})(?:\s{0,3}(?:/|of)\s{0,3}(\d{1,6}))?")
_COUNTS = (
    expression(
        r"(?i)\b(?P<name>global[ _]?steps?|steps?|iter(?:ation)?s?|it|batch(?:es)?|updates?)\b[\"']?\s{0,3}[:=#]?\s{0,3}[\[(]?"
        r"\s{0,8}(?P<done>\d{1,12})\s{0,4}(?:/|of\b)\s{0,8}(?P<total>\d{1,12})(?![\d./])"
    ),
    expression(r"\|\s{0,12}(?P<done>\d{1,12})/(?P<total>\d{1,12})\s\["),
    expression(r"[\[(]\s{0,8}(?P<done>\d{1,12})/\s{0,8}(?P<total>\d{1,12})[\])]"),
    expression(r"(?<![\w/.:-])(?P<done>\d{1,12})/(?P<total>\d{1,12})(?![\w/.:-])"),
)
#: The word before a count of something else than the steps of the training.
_NOT_OF_TRAINING = expression(
    r"(?i)(?<![a-z])(?:val|valid|validation|test|testing|eval|evaluat\w*|download\w*|load\w*|fetch\w*|sav\w*|map|tokeniz\w*|shards?|files?"
    r"|examples)(?![a-z])"
)
_LOSS = expression(r"(?i)loss")


class StepCount(Struct, frozen=True):
    """How far one line says that the training is. text: how it says it. epoch, epochs: which of how many; None: it does not say."""

    done: int
    total: int
    text: str
    epoch: int | None = None
    epochs: int | None = None


def newest_count(lines: Iterable[str]) -> StepCount | None:
    """Return the count of the last line that has one; None where no line has."""
    for line in reversed(list(lines)):
        count = count_of(line)
        if count is not None:
            return count
    return None


def count_of(line: str) -> StepCount | None:
    """Return the count of a line. A line without a word for steps counts only if it is a bar, or has a loss."""
    line = line[:_LONGEST]
    if "/" not in line and " of " not in line:
        return None
    epoch = _EPOCH.search(line)
    rest = line if epoch is None else line[: epoch.start()] + line[epoch.end() :]
    for place, pattern in enumerate(_COUNTS):
        match = pattern.search(rest)
        if match is None or _NOT_OF_TRAINING.search(rest[: match.start()]) or (place > 1 and epoch is None and not _LOSS.search(rest)):
            continue
        done, total = int(match["done"]), int(match["total"])
        if 0 <= done <= total and total > 1:
            name = f"{match['name']} " if place == 0 else ""
            numbers = (None, None) if epoch is None else (int(epoch[1]), int(epoch[2]) if epoch[2] else None)
            return StepCount(done, total, f"{name}{done}/{total}", *numbers)
    return None
