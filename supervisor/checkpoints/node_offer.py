"""The checkpoints that one node offers to the agreement of several nodes, and its proofs that it can load them (node_agreement.py)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from checkpointing.common import NodeCheckpoint, Proof, is_shared, reads
from checkpointing.discover import Listing
from checkpointing.io.tree import ReadOptions
from checkpointing.model import CheckpointingError, nan_weights
from checkpointing.select import Spare, held
from checkpointing.verification import identity_of
from supervisor.checkpoints.selection import FILE_CLOCKS_S

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from checkpointing.model import Candidate
    from checkpointing.select import Selection
    from supervisor.checkpoints.recording.recorder import CheckpointRecorder
    from supervisor.checkpoints.records import CheckpointRecords
    from supervisor.checkpoints.repair import RepairPermission
    from supervisor.checkpoints.retention import Retention
    from supervisor.checkpoints.selection import CheckpointSelector

#: At most so many checkpoints, the newest, are offered to the other nodes.
MOST_OFFERED: Final = 64
_MIXED: Final = "saved while nodes trained from different states"


class NodeOffer:
    """This node's checkpoints, as the other nodes see them. Its methods read files: call them in one worker thread."""

    def __init__(
        self, records: CheckpointRecords, selector: CheckpointSelector, recorder: CheckpointRecorder, retention: Retention
    ) -> None:
        self._records, self._selector, self._recorder, self._retention = records, selector, recorder, retention
        self._offered: dict[NodeCheckpoint, Candidate | Spare] = {}  # for the next attempt

    @property
    def prefers_finite(self) -> bool:
        """Whether this node takes an older checkpoint if weights of the newest turned to NaN."""
        return self._selector.prefers_finite

    def save_dead_ranks_state(self, permission: RepairPermission) -> tuple[str, str] | None:
        """Write to disk the state that this node's dead ranks left in memory. Return the path and the reason if reading failed."""
        records = self._records
        try:
            records.begin_run()
            _ = records.rejections  # an unreadable record is a problem of this node
            records.absorb()
            self._selector.save_dead_ranks_state(permission)
            if records.discovery is not None:
                records.discovery.stat_interrupted_saves()
        except (CheckpointingError, OSError) as error:
            return str(records.directory), str(error)
        return None

    def set_resume_way(self, resume_by: str, *, own_only: bool) -> None:
        """Set by whose knob the next attempt gets its checkpoint, once all nodes have reported which programs were seen."""
        self._records.set_resume_way(resume_by, own_only=own_only)

    def reject_mixed(self, since_t: float) -> None:
        """Reject for good every checkpoint written since `since_t` (wall time), and remove our copies of them.

        From then on the nodes trained from different states. Raises CheckpointingError, OSError.
        """
        since_ns = int((since_t - FILE_CLOCKS_S) * 1e9)
        written = [one for one in self._records.locations.listing(candidates=True).candidates if one.mtime_ns >= since_ns]
        self._records.rejections.add([(one.path, one.identity, _MIXED) for one in written], "mixed")
        for copy in self._records.copies.all():
            if copy.made_ns >= since_ns:
                self._records.copies.remove(copy)

    def list_checkpoints(self, avoid: Collection[str], agreed_attempts: Collection[int]) -> tuple[tuple[NodeCheckpoint, ...], Selection]:
        """List the checkpoints that this node could resume from, newest first, and the reasons against the rest. Reads no tensor data.

        agreed_attempts: those of this run that began with an agreement of the nodes. Raises CheckpointingError, OSError.
        """
        records = self._records
        records.order.step_back(avoid, records.copies)
        rows, selection = held(
            records.resumable(),
            records.rejections,
            records.cache,
            manifests=records.manifests,
            spares=self._selector.copies(),
            avoid=frozenset(avoid),
            order=records.order.order(),
            own=records.provenance.trusts,
        )
        self._offered = {}
        for found, step in rows[:MOST_OFFERED]:
            row = self._row(found, step, agreed_attempts)
            if row is not None:
                self._offered[row] = found
        return tuple(self._offered), selection

    def _row(self, found: Candidate | Spare, step: int | None, agreed_attempts: Collection[int]) -> NodeCheckpoint | None:
        if isinstance(found, Spare):
            path, name, identity, digest = found.place, found.manifest.name, identity_of(found.place), found.manifest.id
        else:
            manifest = self._records.manifests.get(found.path)
            path, name, identity = found.path, os.path.basename(found.path), found.identity  # noqa: PTH119 (strings throughout)
            digest = manifest.id if manifest is not None and manifest.identity == identity else ""
        if identity is None:
            return None
        origin = self._records.provenance.of(path, identity)
        logged = origin.logged_attempt
        written_in = 0 if origin.is_cut or logged is None or logged not in agreed_attempts else logged
        return NodeCheckpoint(path, name, step, identity.size, identity.mtime_ns, identity.ino, digest, written_in)

    def prove(self, candidate: Sequence[NodeCheckpoint], node: int, *, suspect: bool) -> Proof:
        """Prove that this node, number `node`, can load its row of a candidate. Of the nodes that share a file, one reads it."""
        row = candidate[node]
        found = self._offered[row]
        try:
            identity = identity_of(row.path)
            if identity is None or (identity.ino, identity.size, identity.mtime_ns) != (row.inode, row.n_bytes, row.mtime_ns):
                return Proof(f"{row.path} changed, or is gone")
            if not reads(candidate, node):
                return Proof("" if os.access(row.path, os.R_OK) else f"{row.path} cannot be read")
            listing, copies = (Listing(()), (found,)) if isinstance(found, Spare) else (Listing((found,)), ())
            selection = self._selector.select_from(listing, copies, suspect=suspect, rejections=self._records.rejections)
            chosen = selection.chosen
            if chosen is None:
                whys = (*selection.torn, *selection.dangerous, *selection.unverifiable, *selection.unknown, *selection.foreign)
                return Proof(": ".join(whys[0]) if whys else f"{row.path} is not whole")
            digest = row.digest
            if not is_shared(candidate) and not isinstance(found, Spare):
                manifest = self._recorder.record(chosen, ReadOptions())
                digest = manifest.id if manifest is not None else ""
            return Proof("", chosen.step, digest, chosen.level, tuple(sorted(nan_weights(chosen.non_finite or ()))))
        except (CheckpointingError, OSError) as error:
            return Proof(f"{row.path}: {error}")

    def take(self, path: str) -> None:
        """Protect the checkpoint of the attempt from pruning."""
        self._retention.use(path)
