"""The other nodes' records of the same checkpoints, if they share the state directory.

One node reads a shared checkpoint and records its digests. The others take its manifest if it is of the content that they see. Device and
inode differ between mounts, so size and modification time are compared; of a directory the hash of all its files.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.manifest.documents import Manifests
from checkpointing.model import is_unchanged
from checkpointing.retention import ownership
from supervisor.checkpoints.discovery.from_logs import read_last_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from checkpointing.manifest.documents import Manifest
    from checkpointing.model import Identity
    from supervisor.checkpoints.discovery.from_logs import Discovery
    from supervisor.checkpoints.discovery.record import Write

#: How long the node that should read a checkpoint may take: so much, and the time that a slow disk needs for all of it.
PATIENCE_S: Final = 30.0
_SLOW_BYTES_PER_S: Final = 50e6
#: The starts of one save on several nodes differ by less, by their clocks. An earlier run's save to the same path differs by more.
_SAME_SAVE_S: Final = 600.0


class SharedManifests:
    """The records of a job's other nodes. For the watcher's thread."""

    def __init__(self, node_state: Path, directory: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`directory` is where a node's state holds the records of checkpoints."""
        self._nodes, self._me, self._directory, self._clock = node_state.parent, node_state.name, directory, clock
        self._catalogues: dict[str, CheckpointCatalogue] = {}
        self._last_runs: dict[str, tuple[tuple[bytes, int], Discovery]] = {}  # by node, as its catalogue was then
        self._asked: dict[tuple[str, Identity], float] = {}

    def recorded(self, path: str, identity: Identity) -> Manifest | None:
        """Return what another node recorded of this content, with the identity that it has here."""
        for node in self._others():
            manifest = self._of(node).get(path)
            if manifest is not None and (manifest.identity.size, manifest.identity.mtime_ns) == (identity.size, identity.mtime_ns):
                self._asked.pop((path, identity), None)
                return replace(manifest, identity=identity)
        return None

    def is_worth_waiting(self, path: str, identity: Identity) -> bool:
        """Return whether another node may still record this content: there is one, and it had not yet the time to read it."""
        if not self._others():
            return False
        since = self._asked.setdefault((path, identity), self._clock())
        return self._clock() - since < PATIENCE_S + identity.size / _SLOW_BYTES_PER_S

    def is_saved_by_another(self, path: str, identity: Identity, own_discovery: Discovery | None) -> bool:
        """Return whether ranks of another node saved a checkpoint: their save left it as it is, or only theirs was logged."""
        own = () if own_discovery is None else own_discovery.writes(path)
        if any(_left(write, identity) for write in own):
            return False
        others = [write for node in self._others() for write in self._last_run(node).writes(path)]
        return any(_left(write, identity) for write in others) or (bool(others) and not own)

    def wrote(self, path: str, identity: Identity) -> bool:
        """Return whether another node recorded this content as verified, or its ranks logged the saves that left it as it is now."""
        nodes = self._others()
        manifests = (self._of(node).facts(path) for node in nodes)
        if any(manifest is not None and is_unchanged(identity, manifest.identity) for manifest in manifests):
            return True
        return any(_has_left(self._last_run(node), path, identity) for node in nodes)

    def last_runs(self) -> tuple[Discovery, ...]:
        """Return what the ranks of each other node were seen to write in its last run."""
        return tuple(self._last_run(node) for node in self._others())

    def is_first(self, path: str, own_discovery: Discovery) -> bool:
        """Return whether this node's name is the first of those whose ranks took part in the last save of a checkpoint."""
        at = max((write.t for write in own_discovery.writes(path)), default=None)
        earlier = [name for name in self._others() if name < self._me]
        return at is None or not any(abs(write.t - at) < _SAME_SAVE_S for name in earlier for write in self._last_run(name).writes(path))

    def has_others(self) -> bool:
        """Return whether this node sees the records of other nodes."""
        return bool(self._others())

    def _of(self, node: str) -> Manifests:
        return Manifests(self._catalogue(node))

    def _last_run(self, node: str) -> Discovery:
        catalogue = self._catalogue(node)
        state = catalogue.state
        if self._last_runs.get(node, (None,))[0] != state:
            self._last_runs[node] = state, read_last_run(catalogue)
        return self._last_runs[node][1]

    def _catalogue(self, node: str) -> CheckpointCatalogue:
        if node not in self._catalogues:
            self._catalogues[node] = CheckpointCatalogue(self._nodes / node / self._directory)
        return self._catalogues[node]

    def _others(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._nodes) if name != self._me)  # noqa: PTH208
        except OSError:
            return []


def _has_left(discovery: Discovery, path: str, identity: Identity) -> bool:
    """Return whether a run logged the save of each file of a checkpoint as it is now."""
    files = written_files(discovery, path, 0, identity)
    return bool(files) and not ownership.not_written(path, identity, files)


def written_files(discovery: Discovery, path: str, alive_until_ns: int, identity: Identity) -> dict[str, Identity]:
    """Return `Discovery.written_files` of another node, with the device number of this node's mount."""
    files = discovery.written_files(path, alive_until_ns, identity)
    return {file: replace(written, dev=identity.dev) for file, written in files.items()}


def _left(write: Write, identity: Identity) -> bool:
    """Return whether a save left a file as it is now."""
    return write.after is not None and write.after[2:] == (identity.size, identity.mtime_ns)
