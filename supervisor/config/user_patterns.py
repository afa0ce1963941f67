"""Regular expressions of the user's own: searched for a bounded time, and no longer once they have taken too much of it.

In: a pattern in the syntax of Python's `re`. Out: what `re` would find, or nothing where that would take long. A search never fails: a
pattern that is too slow is out of use from then on, and `tell` hears of it, once. Any thread may search; each pattern owns its account.

The standard library's `re` knows no limit and holds the interpreter while it searches, so that a pattern that backtracks without end
would make the whole process deaf, to signals too. The package `regex` reads the same syntax, takes a time limit for each search, and lets
other threads go on. It is imported with the first pattern: our own signatures need none of this, for tests search them in hostile text.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.classify.patterns import Found

#: One search, in seconds of the processor. An honest pattern needs some microseconds for the longest line that is looked at.
SEARCH_S = 0.1
#: What any search may take. What one takes beyond it is charged, and what one leaves of it is made good, up to nothing.
FAIR_S = 0.001
#: How much may be charged: a pattern that is merely slow must not take the time that all the logs have.
CHARGED_S = 0.3


class Bounded:
    """One pattern. `tell` is called once, with the reason, when it goes out of use; from whichever thread searched."""

    def __init__(self, pattern: str, tell: Callable[[str], None]) -> None:
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
        self._tell = tell
        self._charged_s = 0.0
        self._in_use = True

    def search(self, text: str, /) -> Found | None:
        """Return what it finds in the text; None too where it is out of use."""
        if not self._in_use:
            return None
        began = time.thread_time()  # not the wall's: a busy machine must not put an honest pattern out of use
        found: Found | None = None
        try:
            found = self._pattern.search(text, timeout=SEARCH_S)
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
            self._tell(f"{reason}; make it begin with what is always there, and repeat no group that repeats something itself")
