"""The matcher of a signature: a regular expression, or the forms of messages of the kernel's log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Protocol

from supervisor.classify.expressions import expression
from supervisor.core.values import Struct

_GROUP = expression(r"\(\?P<(\w+)>")


class PatternMatch(Protocol):
    """A match: the text of each group, None where it took no part."""

    def __getitem__(self, group: str, /) -> str | None:
        """Return the text of a group."""

    def start(self) -> int:
        """Return where in the text it begins."""


class Pattern(Protocol):
    """A matcher: a pattern of `re`, or one that may give up."""

    def search(self, text: str, /) -> PatternMatch | None:
        """Return the first match in the text."""


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


def groups_of(expression: str) -> tuple[str, ...]:
    """Return the names of the groups of a valid expression, which is not compiled for that."""
    return tuple(dict.fromkeys(_GROUP.findall(expression)))


class OwnPattern(Struct, frozen=True):
    """A pattern of our own: compiled at its first use, for which a healthy job has none. Tests compile each of them."""

    expression: str

    def search(self, text: str, /) -> PatternMatch | None:
        """Return the first match in the text."""
        return _compiled(self.expression).search(text)


class KernelMessage(Struct, frozen=True):
    """One form of a message of the kernel's: a literal that it holds, and the expression that matches it from its beginning."""

    anchor: str
    expression: str

    def match(self, text: str, /) -> re.Match[str] | None:
        """Return the match from the beginning of the text."""
        return _compiled(self.expression).match(text)


class _Groups(Struct, frozen=True):
    """The groups of a kernel message and of a row's own pattern, as one match."""

    values: Mapping[str, str | None]

    def __getitem__(self, group: str, /) -> str | None:
        return self.values.get(group)

    def start(self) -> int:
        return 0


class MessagePattern(Struct, frozen=True):
    """Matches a message of one of these forms in which the row's own pattern, if there is one, is found."""

    forms: tuple[KernelMessage, ...]
    detail: Pattern | None
    detail_groups: tuple[str, ...]

    def search(self, text: str, /) -> PatternMatch | None:
        """Return the groups of the first form that matches, and those of the row's own pattern."""
        message = next((match for form in self.forms if (match := form.match(text))), None)
        if message is None:
            return None
        if self.detail is None:
            return _Groups(message.groupdict())
        detail = self.detail.search(text)
        return _Groups(message.groupdict() | {name: detail[name] for name in self.detail_groups}) if detail is not None else None
