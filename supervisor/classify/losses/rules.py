r"""The loss rules: which number of a line is read, and which change of it is strange.

    [[loss.rule]]
    id = "reward.nan"
    kind = "nan"
    words = ["reward"]
    pattern = 'reward[=:]\s*(?P<value>\S+)'
    times = 3

Kinds, each judged for every rank and every name of a number by itself:

    nan          not a number
    inf          infinite, of either sign
    jump         above `threshold` times the median of the last 100 good numbers, and above all of them; all were above 0
    no_progress  `times` numbers in a row that differ by at most the share `threshold`

A rule without a pattern is about the losses that lines.py knows. *words* are literals of which each matching line has one, so that other
lines cost nothing. The pattern has a group `value`; it may have the groups `name` and `step`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from supervisor.classify.logs.patterns import Pattern
from supervisor.classify.logs.user_patterns import UserPattern
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence


#: Good numbers with which a jump is compared.
WINDOW = 100


class RuleKind(StrEnum):
    """A strange change of a number."""

    NAN = "nan"
    INF = "inf"
    JUMP = "jump"
    NO_PROGRESS = "no_progress"


class NamePattern(Protocol):
    """The matcher for the names of numbers: a pattern of `re`, or one that may give up."""

    def fullmatch(self, text: str, /) -> object | None:
        """Return a match where the whole text matches, else None."""


class LossRule(Struct, frozen=True):
    """One rule.

    words, pattern: of the lines that hold the number; empty and None: the losses that lines.py knows. names: what the number's whole name
    must match, None: any. threshold: a factor (jump) or a share (no_progress). times: so many strange numbers in a row make it report.
    after, from_step: it judges once so many numbers were read, and from this step on.
    origin: the file and line, "" for a built-in rule.
    """

    id: str
    kind: RuleKind
    words: tuple[str, ...] = ()
    pattern: Pattern | None = None
    names: NamePattern | None = None
    threshold: float = 0.0
    times: int = 2
    after: int = 0
    from_step: int = 0
    note: str = ""
    origin: str = ""

    @property
    def is_of_losses(self) -> bool:
        """Whether it is about the losses that lines.py knows."""
        return self.pattern is None


def problem_of(pattern: str) -> str:
    """Return the fault of a rule's pattern, "" without one."""
    try:
        re.compile(pattern)
    except re.error as error:
        return f"it is not a regular expression: {error}"
    try:
        groups = UserPattern(pattern).groups
    except ValueError as error:
        return str(error)
    return "" if "value" in groups else "it has no group for the number, written as (?P<value>...)"


def merged(own: Sequence[LossRule], users: Sequence[LossRule], disabled: frozenset[str] = frozenset()) -> tuple[LossRule, ...]:
    """Return the rules in use: one of the user's replaces the built-in one of the same id. disabled: ids that the user switched off."""
    by_id = {rule.id: rule for rule in (*own, *users)}
    return tuple(rule for name, rule in by_id.items() if name not in disabled)


def condition(rule: LossRule) -> str:
    """Return in words when a rule reports, for tables."""
    times = f"{rule.times} times in a row" if rule.times > 1 else "once"
    texts = {
        RuleKind.NAN: f"NaN {times}",
        RuleKind.INF: f"infinite {times}",
        RuleKind.JUMP: f"above {rule.threshold:g} times the median of the last {WINDOW}, {times}",
        RuleKind.NO_PROGRESS: f"{rule.times} numbers that differ by at most {100 * rule.threshold:g} %"
        if rule.threshold
        else f"the same number {times}",
    }
    starts = (
        (rule.after, f"after {rule.after} numbers"),
        (rule.from_step, f"from step {rule.from_step}"),
    )
    return ", ".join([texts[rule.kind], *(text for wanted, text in starts if wanted)])
