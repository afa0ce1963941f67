"""The files that no attempt may resume from. The files themselves stay untouched.

A rejection holds for one identity of one path, so a rewritten file is free again. `add` returns when the rows are durable. Losing them
costs one more reading of each torn file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.io.row_file import RowTable
from checkpointing.model import Identity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkpointing.catalogue import CheckpointCatalogue


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why one identity of one path is not handed out, and since when (wall time in seconds).

    kind: torn, incomplete, dangerous, mixed (saved while nodes trained from different states), quarantined (by a person).
    """

    path: str
    identity: Identity
    reason: str
    t: float
    kind: str = "torn"


#: By path: the `identity` that is not handed out, `kind` (`torn`, `incomplete`, `dangerous`, `mixed`, `quarantined`), `reason`, and since
#: when (`t`).
REJECTED: Final = RowTable("rejected", Rejection, lambda row: row.path)


class Rejections:
    """The rejections of a job on this node. Thread-safe."""

    def __init__(self, catalogue: CheckpointCatalogue) -> None:
        self._catalogue = catalogue

    def get(self, path: str, identity: Identity) -> Rejection | None:
        """Return the rejection of this identity of this path."""
        rejection = self._catalogue.get(REJECTED, path)
        return rejection if rejection is not None and rejection.identity == identity else None

    def all(self) -> tuple[Rejection, ...]:
        """Return every rejection, also those whose identity is gone."""
        return self._catalogue.all(REJECTED)

    def withdraw(self, path: str) -> bool:
        """Forget the rejection of a path, durably. Return whether there was one."""
        return self._catalogue.remove(REJECTED, path)

    def add(self, torn: Iterable[tuple[str, Identity, str]], kind: str = "torn") -> None:
        """Reject each (path, identity, reason), durably. An older rejection of the same path goes, because its identity is gone."""
        new = [Rejection(path, identity, reason, time.time(), kind) for path, identity, reason in torn if self.get(path, identity) is None]
        if new:
            self._catalogue.put(REJECTED, *new)
