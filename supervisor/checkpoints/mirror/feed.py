"""Chooses which recorded checkpoints this node sends to the mirrors, and sends each once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from checkpointing.mirror import keys
from supervisor.checkpoints.origin.provenance import CheckpointWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpointing.discover import Listing
    from checkpointing.manifest.documents import Manifest
    from checkpointing.model import Candidate, Identity
    from checkpointing.reader.messages import PartRead
    from supervisor.checkpoints.discovery.from_logs import Discovery
    from supervisor.checkpoints.recording.parts import PartRecorder
    from supervisor.checkpoints.recording.recorder import CheckpointRecorder
    from supervisor.checkpoints.recording.shared_manifests import SharedManifests
    from supervisor.checkpoints.records import CheckpointRecords


#: Formats of directories in which each rank writes a file.
_OF_EVERY_RANK: Final = ("dcp", "fsdp", "deepspeed", "megatron", "hf_trainer", "accelerate")


class CheckpointSender(Protocol):
    """The sender of checkpoints to the mirrors."""

    def is_sending(self, path: str, name: str) -> bool:
        """Return whether a checkpoint is still to be sent. name: its keys.nonce_of."""
        ...

    def send(self, manifest: Manifest) -> None:
        """Send a checkpoint, some time; return at once."""
        ...

    def held_paths(self) -> dict[str, frozenset[str]]:
        """Return the paths of the checkpoints that each mirror was seen to hold since the run began."""
        ...

    def whole_saves(self) -> frozenset[str]:
        """Return the keys of the saves of several nodes that were seen whole in a mirror."""
        ...


@dataclass(frozen=True, slots=True)
class MirroredSaves:
    """How many of the checkpoints that this run was seen to save on this node a mirror holds."""

    mirror: str
    held: int
    saved: int

    def __str__(self) -> str:
        """Return the line for people."""
        if not self.saved:
            return f"no save was seen, and none is in {self.mirror}"
        return f"{self.held} of {self.saved} saves are in {self.mirror}"


class _Save(NamedTuple):
    """The facts that decide which node sends a save. layout: its format, "" before it is read."""

    path: str
    identity: Identity
    saved_ns: int
    is_tree: bool
    layout: str


class MirrorFeed:
    """Feeds one job's mirrors, in the watcher's thread."""

    def __init__(
        self,
        records: CheckpointRecords,
        recorder: CheckpointRecorder,
        shared: SharedManifests,
        uploads: CheckpointSender,
        has_rank_0: Callable[[], bool | None],
    ) -> None:
        """`has_rank_0`: whether global rank 0 is on this node; None while no rank is known."""
        self._records, self._recorder, self._shared = records, recorder, shared
        self._uploads, self._has_rank_0 = uploads, has_rank_0
        self._sent: set[tuple[str, str]] = set()
        self._held_before: frozenset[str] = frozenset()  # paths of what all mirrors held already, so that it is not sent
        self._whole_saves: frozenset[str] = frozenset()  # as of the last call of `newly_whole`

    def send_known(self, listing: Listing) -> None:
        """Send the files that were recorded before they were likely to be checkpoints."""
        for candidate in listing.candidates:
            manifest = self._recorder.newest.get(candidate.path)
            if manifest is not None and manifest.identity == candidate.identity:
                self.send(manifest)

    def send(self, manifest: Manifest) -> None:
        """Send a checkpoint, once, if this node is the one to send it."""
        name = manifest.path, keys.nonce_of(manifest)
        save = _Save(manifest.path, manifest.identity, manifest.saved_ns, manifest.is_tree, manifest.layout)
        if name not in self._sent and self._is_ours_to_send(save):
            self._sent.add(name)
            self._send(manifest)

    def _send(self, manifest: Manifest) -> None:
        if self._is_held(manifest):
            self._held_before |= {manifest.path}
            return
        self._held_before -= {manifest.path}
        self._uploads.send(manifest)

    def _is_held(self, save: Manifest | Candidate) -> bool:
        mirrors = self._uploads.held_paths()
        return bool(mirrors) and all(self._records.mirrored.holds(mirror, save) for mirror in mirrors)

    def key_of(self, candidate: Candidate) -> str:
        """Return the key of a checkpoint that is not read yet, if this node is the one to send it; else ""."""
        path, identity = candidate.path, candidate.identity
        save = _Save(path, identity, candidate.written_ns, candidate.is_directory, "")
        if (path, keys.nonce(path, identity)) in self._sent or self._is_held(candidate) or not self._is_ours_to_send(save):
            return ""
        lineage = self._records.provenance.of(path, identity, candidate.written_ns).lineage
        return keys.checkpoint_key(self._records.job.name, lineage.run, lineage.attempt, path, identity)

    def send_part(self, parts: PartRecorder, candidate: Candidate, part: PartRead | None) -> Manifest | None:
        """Record this node's part of a checkpoint of several nodes, if it is one, and send it once. Return it if it is sent now."""
        manifest = parts.record(candidate.path, candidate.identity, part)
        if manifest is None or (name := (manifest.path, keys.nonce_of(manifest))) in self._sent:
            return None
        self._sent.add(name)
        self._send(manifest)
        return manifest

    def whole(self, parts: PartRecorder) -> list[Manifest]:
        """Return the parts here, as they were recorded, of saves that a mirror has whole: with the joint manifest."""
        return _of(self._uploads.whole_saves(), parts)

    def newly_whole(self, parts: PartRecorder) -> list[Manifest]:
        """Return the parts here of saves that became whole in a mirror since the last call."""
        before, self._whole_saves = self._whole_saves, self._uploads.whole_saves()
        return _of(self._whole_saves - before, parts)

    def saves(self) -> tuple[MirroredSaves, ...]:
        """Return for each mirror how many of this run's saves it holds. In any thread, after the first look of the watcher.

        Only saves of this node count: what ranks of several nodes save together is counted by one of them.
        """
        saved, before = self._saves(), self._held_before
        return tuple(MirroredSaves(mirror, len(saved & (held | before)), len(saved)) for mirror, held in self._uploads.held_paths().items())

    def only_here(self) -> tuple[str, ...]:
        """Return the paths of this run's saves on this node that are still there and in no mirror, the last one first. Reads the disk."""
        away = self._saves().difference(self._held_before, *self._uploads.held_paths().values())
        saves = [(os.lstat(path).st_mtime_ns, path) for path in away if os.path.lexists(path)]
        return tuple(path for _, path in sorted(saves, reverse=True))

    def _saves(self) -> set[str]:
        sent = {path for path, _ in tuple(self._sent)}
        return sent if self._records.several_nodes else sent | self._logged_saves()

    def _logged_saves(self) -> set[str]:
        """Return the saves that ranks logged where checkpoints are declared, or where the job saves again and again while it trains."""
        records, discovery = self._records, self._records.discovery
        if discovery is None:
            return set()
        return {
            path
            for path in discovery.saved()
            if records.locations.is_checkpoint_place(path) or discovery.is_repeated(path, in_training=True)
        }

    def is_sending(self, manifest: Manifest) -> bool:
        """Return whether a checkpoint is still to be sent, so that it must stay."""
        return self._uploads.is_sending(manifest.path, keys.nonce_of(manifest))

    def _is_ours_to_send(self, save: _Save) -> bool:
        """Return whether this node sends a checkpoint: one that its ranks saved; of what no hook saw, the node of rank 0.

        Of a directory that ranks of several nodes saved together, the first of these nodes sends it. No hook sees
        safetensors written by a plain `open`, C++ writers and other processes. Their saves must be declared, and new.
        """
        records, discovery = self._records, self._records.discovery
        if records.several_nodes and self._shared.is_saved_by_another(save.path, save.identity, discovery):
            return False
        writer = records.provenance.of(save.path, save.identity, save.saved_ns).writer
        if writer is CheckpointWriter.RANKS and discovery is not None:
            is_first = not (records.several_nodes and save.is_tree) or self._is_first(save, discovery)
            return is_first and records.locations.is_likely(save.path)
        return writer is CheckpointWriter.UNLOGGED and self._has_rank_0() is True and records.locations.is_listed_as_declared(save.path)

    def _is_first(self, save: _Save, discovery: Discovery) -> bool:
        """Return whether this node is the first of those whose ranks saved a directory together.

        By the records of the others, if this node sees them. Else by what the nodes found out when they met: of the formats in which every
        rank writes, the first node that sees the directory sends it.
        """
        if self._shared.has_others():
            return self._shared.is_first(save.path, discovery)
        meeting = self._records.meetings.newest
        return meeting is None or meeting.is_first or (save.layout not in _OF_EVERY_RANK and save.layout != "")


def _of(saves: frozenset[str], parts: PartRecorder) -> list[Manifest]:
    return [manifest for manifest in parts.present() if keys.key_of(manifest) in saves] if saves else []
