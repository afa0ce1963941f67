"""Records what this node holds of checkpoints whose other files lie on the disks of other nodes (checkpointing/manifest/joint.py).

A part is recorded only where the nodes are known to have directories of their own, and once the save logs show that all ranks of this node
ended the save. The name of a save is made of the meeting, the directory's name, and which save to that directory it is in the attempt:
ranks save together, so these agree on all nodes, and no other save has them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from checkpointing.io.tree import ReadOptions
from checkpointing.manifest.documents import PART, Manifests, NodePart, decode
from checkpointing.reader.messages import ReadCheckpoint
from checkpointing.reader.one_pass import part_of
from checkpointing.verification import identity_of
from supervisor.checkpoints.recording import numerics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.manifest.documents import Manifest
    from checkpointing.model import Candidate, Identity
    from checkpointing.reader.messages import PartRead
    from supervisor.checkpoints.records import CheckpointRecords


class PartRecorder:
    """The parts of one job on this node, in worker threads. They are not checkpoints: their rows are of another table."""

    def __init__(self, records: CheckpointRecords) -> None:
        self._records = records
        self.manifests = Manifests(records.catalogue, PART)

    def is_under_way(self, path: str) -> bool:
        """Return whether ranks of this node still save to a directory that may become a part."""
        return self._may_be_part(path) and self._save_of(path) is None

    def present(self) -> Iterator[Manifest]:
        """Yield the recorded parts that are there as they were."""
        for manifest in self.manifests.all():
            if identity_of(manifest.path) == manifest.identity:
                yield manifest

    def is_to_be_read(self, candidate: Candidate) -> bool:
        """Return whether a directory may be a part that is not recorded yet."""
        return self.manifests.of(candidate.path, candidate.identity) is None and self._save_of(candidate.path) is not None

    def read(self, candidate: Candidate) -> PartRead | None:
        """Read a directory that may be a part, in this process, at full speed; None if there is nothing to record."""
        if not self.is_to_be_read(candidate):
            return None
        order = ReadCheckpoint(0, candidate.path, self._records.provenance.trusts(candidate.path))
        return part_of(order, self._records.job.name, ReadOptions())

    def record(self, path: str, identity: Identity, part: PartRead | None) -> Manifest | None:
        """Record the part that was read at a path. None if it is not a part, its save has not ended, or it changed meanwhile."""
        known = self.manifests.of(path, identity)
        save = self._save_of(path)
        records, meeting = self._records, self._records.meetings.newest
        if known is not None or save is None:
            return known
        if part is None or meeting is None:
            return None
        manifest = decode(part.manifest.encode("ascii"))
        if manifest.identity != identity:
            return None
        # a save is logged before it writes: if none was logged by now, the bytes read are of the one that ended before
        records.absorb_logs()
        if self._save_of(path) != save:
            return None
        lineage = records.provenance.of(path, identity, manifest.saved_ns).lineage
        if manifest.non_finite:
            last = numerics.last_before(manifest, self.manifests.all(), records.job.run_id)
            manifest = replace(manifest, non_finite=numerics.compared(manifest.non_finite, last))
        about = replace(manifest.about, run=lineage.run, began=lineage.began, attempt=lineage.attempt)
        manifest = replace(manifest, about=about, save=save, part=NodePart(meeting.node, part.absent, part.leads))
        records.order.write()
        self.manifests.put(manifest)  # where that fails it is known until this process ends, and sent all the same
        return manifest

    def _may_be_part(self, path: str) -> bool:
        """Return whether this node's ranks saved to a directory in this attempt, and this node is the one to record its part."""
        meeting, discovery = self._records.meetings.newest, self._records.discovery
        if meeting is None or discovery is None or not meeting.is_apart or not meeting.is_first:
            return False
        writes = discovery.writes(path)
        return bool(writes) and all(write.attempt == meeting.attempt and write.save_count for write in writes)

    def _save_of(self, path: str) -> str | None:
        """Return the name of the save that left a directory as it is; None if that is not known, or it has not ended."""
        meeting, discovery = self._records.meetings.newest, self._records.discovery
        if meeting is None or discovery is None or not self._may_be_part(path):
            return None
        writes = discovery.writes(path)
        if any(write.interrupted or write.after is None for write in writes):
            return None
        text = f"{meeting.name}/{path.rstrip('/').rpartition('/')[2]}/{max(write.save_count for write in writes)}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
