"""The checkpoints of this node that a mirror holds whole, with their manifests: rows of the catalogue. A row's save is not sent again.

A row holds for one identity of one path. It is written when the upload ended, when a checkpoint was restored, and, where the catalogue was
lost with a disk, from the mirror's manifests of what still lies here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.io.row_file import RowTable
from checkpointing.manifest.documents import is_gone
from checkpointing.mirror import keys
from checkpointing.model import Identity, is_unchanged
from checkpointing.reader.messages import CheckpointUploaded, CopyPruned

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkpointing.catalogue import CheckpointCatalogue
    from checkpointing.manifest.documents import Manifest, Manifests
    from checkpointing.model import Candidate
    from checkpointing.reader.messages import ReaderEvent


@dataclass(frozen=True, slots=True)
class MirroredRow:
    """A checkpoint in a mirror. mirror: its URL; key: in it; t: since when that is known, wall time in seconds."""

    path: str
    identity: Identity
    mirror: str
    key: str
    t: float


#: By mirror and path: a checkpoint that a mirror holds whole: `identity`, the `key` there, and since when that is known (`t`); it is not
#: sent again.
MIRRORED: Final = RowTable("mirrored", MirroredRow, lambda row: f"{row.mirror} {row.path}")


class MirroredCheckpoints:
    """The mirrored checkpoints of one job on this node. Thread-safe."""

    def __init__(self, catalogue: CheckpointCatalogue, tables: Iterable[Manifests]) -> None:
        """`tables`: the manifests of what may be sent."""
        self._catalogue, self._tables = catalogue, tuple(tables)

    def add(self, mirror: str, manifest: Manifest, key: str = "") -> None:
        """Record that a mirror holds a checkpoint. `key`: where, if not where it would be sent."""
        self._catalogue.put(MIRRORED, MirroredRow(manifest.path, manifest.identity, mirror, key or keys.key_of(manifest), time.time()))

    def holds(self, mirror: str, save: Manifest | Candidate) -> bool:
        """Return whether a mirror is recorded to hold this content of this path."""
        row = self._catalogue.get(MIRRORED, f"{mirror} {save.path}")
        return row is not None and is_unchanged(save.identity, row.identity)

    def took(self, event: ReaderEvent) -> None:
        """Take an event of the process that sends."""
        if isinstance(event, CheckpointUploaded) and event.key:
            for manifest in filter(None, (table.facts(event.path) for table in self._tables)):
                if keys.nonce_of(manifest) == event.id:
                    self.add(event.mirror, manifest, event.key)
        elif isinstance(event, CopyPruned):
            gone = [row for row in self._catalogue.each(MIRRORED) if (row.mirror, row.key) == (event.mirror, event.key)]
            self._catalogue.remove(MIRRORED, *map(MIRRORED.key, gone))

    def sweep(self) -> None:
        """Remove the rows of checkpoints that are gone here, which nothing would send."""
        self._catalogue.remove(MIRRORED, *(MIRRORED.key(row) for row in self._catalogue.each(MIRRORED) if is_gone(row.path)))
