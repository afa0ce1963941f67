"""The files at the declared patterns before this job wrote there: a mirror gets only later ones.

It is taken once for the job's patterns, before the first rank starts, and outlives a run: what one run saved last and could not send is
still a change to the next. A time would not do, since the clock of a network file system is another machine's. It is in the catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.io.row_file import RowTable, TableChange
from checkpointing.model import Identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from checkpointing.catalogue import CheckpointCatalogue
    from checkpointing.model import Candidate


@dataclass(frozen=True, slots=True)
class LookedBefore:
    """The patterns for which it was recorded what lay there."""

    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayBefore:
    """A checkpoint that lay there."""

    path: str
    identity: Identity


#: One row: the declared patterns when what lay there was looked at.
LOOKED: Final = RowTable("looked_before", LookedBefore, lambda _row: "")
#: By path: what lay there before the job wrote: no mirror gets it.
BEFORE: Final = RowTable("lay_before", LayBefore, lambda row: row.path)


class Baseline:
    """The baseline of one job on this node. Not thread-safe: it is written before the ranks start, and read afterwards."""

    def __init__(self, catalogue: CheckpointCatalogue, patterns: Sequence[str]) -> None:
        """Read nothing yet."""
        self._catalogue, self._looked = catalogue, LookedBefore(tuple(patterns))
        self._files: dict[str, LayBefore] | None = None

    def take(self, candidates: Iterable[Candidate]) -> None:
        """Record the present files, unless that was done for the same patterns before."""
        before = {row.path: row for row in self._catalogue.all(BEFORE)}
        looked = self._catalogue.get(LOOKED)
        if looked == self._looked:
            self._files = before
            return
        self._files = {candidate.path: LayBefore(candidate.path, candidate.identity) for candidate in candidates}
        self._catalogue.change(
            TableChange(BEFORE, before, self._files), TableChange(LOOKED, {} if looked is None else {"": looked}, {"": self._looked})
        )

    def add(self, path: str, identity: Identity) -> None:
        """Add a checkpoint that was restored from a mirror: it need not be sent again."""
        row = LayBefore(path, identity)
        self._files = {**(self._files or {}), path: row}
        self._catalogue.put(BEFORE, row)

    def has(self, path: str, identity: Identity) -> bool:
        """Return whether this content lay there before. Where nothing was recorded yet, it may have."""
        return self._files is None or self.lists(path, identity)

    def lists(self, path: str, identity: Identity) -> bool:
        """Return whether this content is recorded to have lain there before."""
        row = (self._files or {}).get(path)
        return row is not None and row.identity == identity
