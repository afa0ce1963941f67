"""Findings of which there may be any number, in bounded memory: some of each kind stay, whatever floods of others do.

In: findings, each with its kind (a row's id) and the rank that it is of. Out: those that are kept, by kind. Nothing fails. Whoever reads a
stream, or the streams of an incident, owns one.

Of a kind and rank the first ones and the last ones are kept: the first tell what began it, the last whether it still went on. Where all are
too many it is the largest kind that is thinned out: first to one of each end for a rank, then by ranks from the middle. So a thousand ranks
that warn do not push out the one record that says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


@dataclass(slots=True)
class _OfRank(Generic[T]):
    """Of one kind and rank."""

    first: list[T] = field(default_factory=list)
    last: list[T] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.first) + len(self.last)


class Hits(Generic[T]):
    """The findings of one stream, or incident: at most `most` of them."""

    def __init__(self, most: int, *, first: int, last: int) -> None:
        """Begin with none. first, last: how many are kept of one kind and rank."""
        self._most, self._first, self._last = most, first, last
        self._kinds: dict[str, dict[int | None, _OfRank[T]]] = {}
        self._counts: dict[str, int] = {}
        self._count = 0

    def __len__(self) -> int:
        """Count those that are kept."""
        return self._count

    def __iter__(self) -> Iterator[T]:
        """Go through those that are kept, kind by kind."""
        for ranks in self._kinds.values():
            for of_rank in ranks.values():
                yield from of_rank.first
                yield from of_rank.last

    def add(self, kind: str, rank: int | None, finding: T) -> None:
        """Take a finding in; it may be thinned out later."""
        of_rank = self._kinds.setdefault(kind, {}).setdefault(rank, _OfRank())
        if len(of_rank.first) < self._first:
            of_rank.first.append(finding)
        elif len(of_rank.last) < self._last:
            of_rank.last.append(finding)
        else:
            del of_rank.last[0]
            of_rank.last.append(finding)
            return
        self._grow(kind, 1)
        if self._count > self._most:
            self._thin(max(self._counts, key=self._counts.__getitem__))

    def _grow(self, kind: str, by: int) -> None:
        self._counts[kind] = self._counts.get(kind, 0) + by
        self._count += by

    def _thin(self, kind: str) -> None:
        """Take away a good part of a kind at once, so that a flood costs the same for each finding however long it lasts."""
        ranks = self._kinds[kind]
        before = self._counts[kind]
        for of_rank in ranks.values():
            del of_rank.first[1:], of_rank.last[:-1]
        if 2 * sum(map(len, ranks.values())) > before:  # they are many ranks rather than many of a rank
            middle = list(ranks)[len(ranks) // 4 : len(ranks) - len(ranks) // 4]
            for rank in middle:
                del ranks[rank]
        self._grow(kind, sum(map(len, ranks.values())) - before)
        if not ranks:
            del self._kinds[kind], self._counts[kind]
