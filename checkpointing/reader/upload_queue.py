"""The checkpoints that wait for their uploads, in the reader process: in memory, since the supervisor's catalogue has them on disk."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkpointing.manifest import documents
from checkpointing.manifest.documents import Manifest
from checkpointing.mirror import keys
from checkpointing.reader.messages import SendCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class WaitingCheckpoint:
    """A checkpoint to upload. done, begun: mirrors that hold all, or some of it, by now."""

    order: SendCheckpoint
    manifest: Manifest
    done: set[str]
    begun: set[str]

    @property
    def key(self) -> str:
        """Its key in the mirrors."""
        return keys.key_of(self.manifest)


class UploadQueue:
    """The waiting uploads. Thread-safe."""

    def __init__(self) -> None:
        """Begin empty."""
        self._lock = threading.Lock()
        self._entries: dict[str, WaitingCheckpoint] = {}
        self._under_way: dict[str, str] = {}  # mirror → id of the entry on its way there
        self._failing: dict[str, str] = {}  # mirror → id of the entry that failed at the last attempt: others go first

    def add(self, order: SendCheckpoint) -> None:
        """Add a checkpoint, if it is not here. Raises ManifestDamaged, ValueError."""
        manifest = documents.decode(order.manifest.encode("ascii"))
        if len(order.held) != len(manifest.files):
            raise ValueError("it has other files than its manifest")
        with self._lock:
            self._entries.setdefault(order.id, WaitingCheckpoint(order, manifest, set(order.done), set(order.begun)))

    def entries(self) -> tuple[WaitingCheckpoint, ...]:
        """Return the entries, newest first: after days without a mirror the newest is worth most."""
        with self._lock:
            return tuple(sorted(self._entries.values(), key=lambda entry: -entry.order.at))

    def left(self) -> tuple[int, int]:
        """Return how many entries wait, and their bytes."""
        entries = self.entries()
        return len(entries), sum(entry.order.n_bytes for entry in entries)

    def claim(self, mirror: str) -> WaitingCheckpoint | None:
        """Return the entry to upload to a mirror next, claimed until `release`: the unfinished one, else the newest.

        If uploads are slower than saves, the newest alone would leave each upload unfinished for the next.
        """
        with self._lock:
            entry = self._next(mirror)
            if entry is not None:
                self._under_way[mirror] = entry.order.id
            return entry

    def has_for(self, mirror: str) -> bool:
        """Return whether an entry has not arrived at a mirror yet."""
        with self._lock:
            return self._next(mirror) is not None

    def release(self, mirror: str, *, failing: bool = False) -> None:
        """End a claim. `failing`: the entry failed, so another one goes first."""
        with self._lock:
            claimed = self._under_way.pop(mirror, "")
            self._failing[mirror] = claimed if failing else ""

    def drop_waiting(self, most: int, mirrors: Iterable[str]) -> list[WaitingCheckpoint]:
        """Drop the oldest entries beyond `most`, but not the newest, nor those on their way or unfinished."""
        with self._lock:
            stays = {*self._under_way.values(), *(entry.order.id for mirror in mirrors if (entry := self._next(mirror)) is not None)}
            ordered = sorted(self._entries.values(), key=lambda entry: entry.order.at)
            waiting = [entry for entry in ordered[:-1] if entry.order.id not in stays]
            dropped = waiting[: max(0, len(ordered) - most)]
            for entry in dropped:
                del self._entries[entry.order.id]
        return dropped

    def holds(self, entry: WaitingCheckpoint) -> bool:
        """Return whether an entry is still here."""
        with self._lock:
            return entry.order.id in self._entries

    def mark_done(self, entry: WaitingCheckpoint, mirror: str, mirrors: Iterable[str]) -> None:
        """Note that an entry has arrived; drop it once it has arrived everywhere."""
        with self._lock:
            entry.done.add(mirror)
            if entry.done.issuperset(mirrors):
                self._entries.pop(entry.order.id, None)

    def drop(self, entry: WaitingCheckpoint) -> None:
        """Drop an entry."""
        with self._lock:
            self._entries.pop(entry.order.id, None)

    def _next(self, mirror: str) -> WaitingCheckpoint | None:
        """Return the next entry for a mirror. The caller holds the lock."""
        waiting = [entry for entry in self._entries.values() if mirror not in entry.done]
        failing = self._failing.get(mirror)
        return min(waiting, key=lambda entry: (entry.order.id == failing, mirror not in entry.begun, -entry.order.at), default=None)
