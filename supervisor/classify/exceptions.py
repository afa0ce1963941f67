"""Finds the facts of an incident that are about one exception, and its traceback.

The tables are built once, because an incident may hold tens of thousands of facts. Two facts are about one exception if their ranks do not
differ, and they have the same text or stand on the same lines. A traceback belongs to the exception with its source, rank and line: an
error file and a launcher may both report one rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from supervisor.core.model import Evidence

#: Facts of an uncaught exception, as (source, name).
UNCAUGHT = frozenset({("error_file", "exception"), ("launcher", "exception"), ("log", "exception"), ("tail", "last_exception")})
#: A rank read what another one was writing: evidence that means the exception that it led to.
RACE = ("checkpoint", "race")
#: The lines of the script that explain a race, or collectives that differ (source/standing.py).
REASON = ("script", "reason")


class FactIndex:
    """Facts by text and by line."""

    def __init__(self, facts: Iterable[Evidence]) -> None:
        """Take the facts."""
        self._by_text: dict[str, dict[int | None, list[Evidence]]] = {}
        self._by_line: dict[int, dict[int | None, list[Evidence]]] = {}
        for fact in facts:
            self._by_text.setdefault(fact.text, {}).setdefault(fact.rank, []).append(fact)
            for line in _lines_of(fact):
                self._by_line.setdefault(line, {}).setdefault(fact.rank, []).append(fact)

    def about(self, fact: Evidence) -> Iterator[Evidence]:
        """Yield the facts about the same exception; a fact may come twice."""
        for ranks in (self._by_text.get(fact.text, {}), *(self._by_line.get(line, {}) for line in _lines_of(fact))):
            for rank in ranks if fact.rank is None else (fact.rank, None):
                yield from ranks.get(rank, ())

    def knows(self, fact: Evidence) -> bool:
        """Whether a fact of the index is about the same exception."""
        return next(self.about(fact), None) is not None


class Exceptions:
    """The exceptions of an incident, with their claims and tracebacks."""

    def __init__(self, facts: Iterable[Evidence]) -> None:
        """Take the facts."""
        listed = tuple(facts)
        self.claims = FactIndex(fact for fact in listed if fact.claim is not None)
        self.uncaught = FactIndex(fact for fact in listed if (fact.source, fact.name) in UNCAUGHT)
        self._of_races = {fact.rank: fact for fact in reversed(listed) if (fact.source, fact.name) == ("error_file", "exception")}
        self._traces: dict[tuple[str, int | None, int], str] = {}
        for fact in listed:
            if fact.name == "traceback":
                self._traces.setdefault((fact.source, fact.rank, fact.line), fact.text)

    def beside(self, fact: Evidence) -> Evidence | None:
        """Return the exception that a fact is or makes a claim about. Of several, that of the same source, which has the frames."""
        if (fact.source, fact.name) in UNCAUGHT:
            return fact
        if (fact.source, fact.name) == RACE:
            return self._of_races.get(fact.rank)
        if fact.claim is None:
            return None
        exceptions = self.uncaught.about(fact)
        return min(
            exceptions,
            key=lambda exception: (
                exception.source != fact.source,
                exception.rank != fact.rank,
                exception.source,
                exception.line,
                exception.t,
            ),
            default=None,
        )

    def trace(self, exception: Evidence) -> str:
        """Return the traceback of an exception, "" if none is known."""
        return self._traces.get((exception.source, exception.rank, exception.line), "")


def _lines_of(fact: Evidence) -> range:
    return range(fact.line, fact.line + fact.text.count("\n") + 1) if fact.line else range(0)
