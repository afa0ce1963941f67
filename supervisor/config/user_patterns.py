"""The user's own regular expressions, searched for a bounded time. A pattern that is too slow is disabled and reported once.

The standard library's `re` has no limit and holds the interpreter while it searches: a pattern that backtracks without end would block
the whole process, signals too. The package `regex` reads the same syntax, takes a time limit for each search, and lets other threads go on.
It is imported with the first pattern. Our own signatures do not need it: tests search them in hostile text.

Any thread may search; each pattern counts its own time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.classify.logs.patterns import PatternMatch

#: One search, in seconds of the processor. An honest pattern needs some microseconds for the longest line.
SEARCH_S = 0.1
#: What any search may take. Time beyond it is added to the account; time below it is taken off, down to zero.
FAIR_S = 0.001
#: The most on the account: a pattern that is merely slow must not take the time of all the logs.
CHARGED_S = 0.3


class Bounded:
    """One pattern. `report` is called once, with the reason, when it is disabled; from whichever thread searched."""

    def __init__(self, pattern: str, report: Callable[[str], None]) -> None:
        """Take a pattern. Raises ValueError where `regex` does not know what `re` knows, or is not installed."""
        try:
            import regex  # noqa: PLC0415  see the head of this module
        except ImportError as error:
            message = "the package regex, which searches with patterns of your own, is not installed"
            raise ValueError(message) from error
        try:
            self._pattern = regex.compile(pattern, regex.V0)
        except regex.error as error:
            raise ValueError(str(error)) from error
        self._report = report
        self._charged_s = 0.0
        self._in_use = True

    def search(self, text: str, /) -> PatternMatch | None:
        """Return what it finds in the text; None too if it is disabled."""
        return self._bounded(self._pattern.search, text)

    def fullmatch(self, text: str, /) -> PatternMatch | None:
        """Return the match of the whole text; None too if it is disabled."""
        return self._bounded(self._pattern.fullmatch, text)

    def _bounded(self, search: Callable[..., PatternMatch | None], text: str) -> PatternMatch | None:
        if not self._in_use:
            return None
        began = time.thread_time()  # not the wall's: a busy machine must not put an honest pattern out of use
        found: PatternMatch | None = None
        try:
            found = search(text, timeout=SEARCH_S)
        except TimeoutError:
            self._give_up(f"its pattern searched one text of {len(text)} characters for more than {SEARCH_S:g} s")
        except MemoryError:
            self._give_up("its pattern takes more memory than there is")
        self._charged_s = max(0.0, self._charged_s + time.thread_time() - began - FAIR_S)
        if self._charged_s > CHARGED_S:
            self._give_up(f"its pattern takes more than {1000 * FAIR_S:g} ms for a text, again and again")
        return found

    def _give_up(self, reason: str) -> None:
        if self._in_use:
            self._in_use = False
            self._report(f"{reason}; make it begin with what is always there, and repeat no group that repeats something itself")
