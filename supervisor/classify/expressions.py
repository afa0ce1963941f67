"""Regular expressions that are compiled at their first use: a healthy run needs few of the 200, and each start would pay for all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

_METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split")


class _Expression:
    """A stand-in for a `re.Pattern`. From the first use on its methods are the pattern's own, so a later call costs nothing more."""

    def __init__(self, text: str, flags: int) -> None:
        self._compile: Callable[[], re.Pattern[str]] = lambda: re.compile(text, flags)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever the pattern has under this name
        if name.startswith("__"):
            raise AttributeError(name)
        compiled = self._compile()
        vars(self).update({method: getattr(compiled, method) for method in _METHODS})
        return getattr(compiled, name)


def expression(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return the pattern of `re.compile(text, flags)`, which is compiled when a method of it is first asked for.

    For a constant of a module. A wrong text raises `re.error` at the first use.
    """
    return cast("re.Pattern[str]", _Expression(text, flags))
