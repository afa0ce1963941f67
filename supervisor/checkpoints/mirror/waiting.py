"""The checkpoints that wait to be sent to the mirrors: rows of the catalogue, and pins of their files.

They outlive the reader process, the supervisor, an outage of the mirrors, and the removal of the files by the job. A row is written after
its pins, so that pins without a row are what a kill left. A file that cannot be pinned (io/reflink.py) is read where it was saved.
"""

from __future__ import annotations

import os
import shutil
import threading
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from checkpointing.io import durable
from checkpointing.io.row_file import RowTable
from checkpointing.manifest import documents
from checkpointing.mirror import keys
from checkpointing.mirror.source import pinned_files
from checkpointing.reader.messages import SendCheckpoint
from supervisor.checkpoints.mirror import WAITING_TABLE

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from checkpointing.catalogue import CheckpointCatalogue
    from checkpointing.manifest.documents import Manifest

PINS: Final = "pins"


#: By nonce: a checkpoint on its way to the mirrors: its manifest, how its files are held, when it was saved (`at`), and which mirrors have
#: it (`done`) or some of it (`begun`).
WAITING: Final = RowTable(WAITING_TABLE, SendCheckpoint, lambda row: row.id)


class WaitingUploads:
    """The waiting uploads of one job on this node. Thread-safe."""

    def __init__(self, catalogue: CheckpointCatalogue, directory: Path) -> None:
        """Read what waits since an earlier run. `directory`: that of the catalogue."""
        self._catalogue, self._directory = catalogue, f"{directory}/{PINS}"
        self._lock = threading.Lock()
        self._rows = {row.id: row for row in catalogue.all(WAITING)}

    def sweep(self) -> None:
        """Remove the pins that a kill left without a row. Before the first `hold`."""
        with self._lock:
            known = set(self._rows)
        try:
            names = os.listdir(self._directory)  # noqa: PTH208 -- strings throughout
        except OSError:
            return
        for name in names:
            if name not in known:
                shutil.rmtree(f"{self._directory}/{name}", ignore_errors=True)

    def rows(self) -> tuple[SendCheckpoint, ...]:
        """Return what waits, the oldest first."""
        with self._lock:
            return tuple(sorted(self._rows.values(), key=lambda row: row.at))

    def hold(self, manifest: Manifest) -> SendCheckpoint:
        """Pin the files of a checkpoint and record that it waits, unless it does. Raises OSError."""
        name = keys.nonce_of(manifest)
        with self._lock:
            if name in self._rows:
                return self._rows[name]
        directory = f"{self._directory}/{name}"
        shutil.rmtree(directory, ignore_errors=True)
        durable.make_directory(directory)
        held = pinned_files(manifest.path, manifest, directory)
        raw = documents.encode(manifest).decode("ascii")
        row = SendCheckpoint(name, manifest.path, raw, held, manifest.saved_ns / 1e9, manifest.n_bytes)
        self._put(row)
        return row

    def note_begun(self, name: str, mirror: str) -> None:
        """Note that some of a checkpoint has arrived at a mirror."""
        with self._lock:
            row = self._rows.get(name)
        if row is not None and mirror not in row.begun:
            self._put(replace(row, begun=(*row.begun, mirror)))

    def note_done(self, name: str, mirror: str, mirrors: Collection[str]) -> None:
        """Note that a checkpoint has arrived at a mirror; drop it once it is in all of them."""
        with self._lock:
            row = self._rows.get(name)
        if row is None:
            return
        done = (*row.done, mirror)
        if set(done).issuperset(mirrors):
            self.drop(name)
        else:
            self._put(replace(row, done=done))

    def drop(self, name: str) -> None:
        """Forget a checkpoint, and remove its pins."""
        with self._lock:
            self._rows.pop(name, None)
        self._catalogue.remove(WAITING, name)
        shutil.rmtree(f"{self._directory}/{name}", ignore_errors=True)

    def _put(self, row: SendCheckpoint) -> None:
        with self._lock:
            self._rows[row.id] = row
        self._catalogue.put(WAITING, row)
