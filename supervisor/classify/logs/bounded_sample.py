"""Keeps a sample of any number of items in bounded memory: a flood of one kind never pushes out another kind.

It keeps the first and the last items of each kind and rank: the first show how it began, the last whether it continued. If the total is too
large, it thins out the largest kind: first to one item at each end of a rank, then by ranks from the middle. So a thousand ranks that warn
do not push out the one record that names the cause.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


@dataclass(slots=True)
class _RankItems(Generic[T]):
    """The items of one kind and rank."""

    first: list[T] = field(default_factory=list)
    last: list[T] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.first) + len(self.last)


class BoundedSample(Generic[T]):
    """The items of one stream, or incident: at most `most` of them."""

    def __init__(self, most: int, *, first: int, last: int) -> None:
        """Begin with none. first, last: how many are kept of one kind and rank."""
        self._most, self._first, self._last = most, first, last
        self._kinds: dict[str, dict[int | None, _RankItems[T]]] = {}
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

    def add(self, kind: str, rank: int | None, item: T) -> None:
        """Add an item; it may be thinned out later."""
        of_rank = self._kinds.setdefault(kind, {}).setdefault(rank, _RankItems())
        if len(of_rank.first) < self._first:
            of_rank.first.append(item)
        elif len(of_rank.last) < self._last:
            of_rank.last.append(item)
        else:
            del of_rank.last[0]
            of_rank.last.append(item)
            return
        self._grow(kind, 1)
        if self._count > self._most:
            self._thin(max(self._counts, key=self._counts.__getitem__))

    def _grow(self, kind: str, by: int) -> None:
        self._counts[kind] = self._counts.get(kind, 0) + by
        self._count += by

    def _thin(self, kind: str) -> None:
        """Remove a good part of a kind at once, so that each item of a flood costs the same however long it lasts."""
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
