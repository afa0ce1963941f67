"""The checkpoints that one node offers to the agreement of several nodes, and its proofs that it can load them (node_agreement.py)."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from checkpointing import step_names
from checkpointing.candidates import Spare
from checkpointing.common import NodeCheckpoint, NodeSave, Proof, is_shared, reads
from checkpointing.discover import Listing
from checkpointing.io.read_watch import DiskSilent
from checkpointing.io.reader import Interrupted
from checkpointing.model import Candidate, CheckpointingError, nan_weights
from checkpointing.select import held
from checkpointing.verification import NOT_TO_THE_END, identity_of
from supervisor.checkpoints.origin.owners import FILE_CLOCKS_S
from supervisor.checkpoints.recording.meeting import NodeMeeting
from supervisor.checkpoints.shared_directories import LOOK_S, DirectoryMarkers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from checkpointing.manifest.documents import Manifest
    from checkpointing.select import Selection
    from supervisor.checkpoints.mirror.feed import MirrorFeed
    from supervisor.checkpoints.recording.parts import PartRecorder
    from supervisor.checkpoints.recording.recorder import CheckpointRecorder
    from supervisor.checkpoints.records import CheckpointRecords
    from supervisor.checkpoints.retention import Retention
    from supervisor.checkpoints.selection import CheckpointSelector
    from supervisor.checkpoints.shared_directories import DirectoryMarker

#: At most so many checkpoints, the newest, are offered to the other nodes.
MOST_OFFERED: Final = 64
#: So many parts that the watcher had no time for are read while all nodes wait.
MOST_READ: Final = 2
_INCOMPLETE: Final = "incomplete"
_MIXED: Final = "saved while nodes trained from different states"


@dataclass(frozen=True, slots=True)
class SaveRestored:
    """A save of several nodes that was brought here from a mirror. path "": it was not. is_missing: not all parts of it are there."""

    path: str
    reason: str = ""
    is_missing: bool = False


class NodeOffer:
    """This node's checkpoints, as the other nodes see them. Its methods read files: call them in one worker thread."""

    def __init__(
        self,
        records: CheckpointRecords,
        selector: CheckpointSelector,
        recorder: CheckpointRecorder,
        retention: Retention,
        parts: PartRecorder,
    ) -> None:
        self._records, self._selector, self._recorder, self._retention, self._parts = records, selector, recorder, retention, parts
        self.feed: MirrorFeed | None = None  # without a mirror
        #: Restores a save of several nodes from the mirrors; returns its path, "" if it is not there, and the reason.
        self.restore_save: Callable[[str], SaveRestored] | None = None
        self.look_s = LOOK_S  # how long this node searches for the markers of others
        self._restored: dict[str, str] = {}  # save → path at which all of it is here
        self._offered: dict[NodeCheckpoint, Candidate | Spare] = {}  # for the next attempt
        self._listed: tuple[Candidate, ...] = ()  # at the last agreement
        self._apart: frozenset[str] = frozenset()  # nodes whose markers it did not find the last time
        self._noted: tuple[tuple[str, ...], ...] = ()  # groups of nodes that were reported
        self.markers = DirectoryMarkers(self._directories)

    @property
    def n_moves(self) -> int:
        """The count that grows while this node reads, or brings a save here."""
        return self._records.reads.n_moves

    @property
    def prefers_finite(self) -> bool:
        """Whether this node takes an older checkpoint if weights of the newest turned to NaN."""
        return self._selector.prefers_finite

    @property
    def has_saved(self) -> bool:
        """Whether ranks of this run were seen to save on this node; True where no save is logged."""
        return self._records.has_saved

    def read_records(self) -> tuple[str, str] | None:
        """Read this node's records of checkpoints and the saves that its ranks logged. Return the path and the reason if reading failed."""
        records = self._records
        try:
            records.listed(records.begin_run)
            records.absorb()
            if records.discovery is not None:
                records.discovery.stat_interrupted_saves()
        except (CheckpointingError, OSError) as error:
            return str(records.directory), str(error)
        return None

    def set_resume_way(self, resume_by: str, *, own_only: bool) -> None:
        """Set by whose knob the next attempt gets its checkpoint, once all nodes have reported which programs were seen."""
        self._records.set_resume_way(resume_by, own_only=own_only)

    def record_parts(self) -> None:
        """Record and send the newest parts of the attempt that has ended, before the next meeting. Reads them at full speed."""
        if self._records.meetings.newest is None:
            return
        with contextlib.suppress(CheckpointingError, OSError):  # `list_checkpoints` meets it as well, and reports it
            listed = self._records.locations.listing(candidates=True).candidates
            known, directories = self._parts.manifests.of, (candidate for candidate in listed if candidate.is_directory)
            unread = [candidate for candidate in directories if known(candidate.path, candidate.identity) is None]
            for candidate in self._records.order.order().newest_candidates(unread)[:MOST_READ]:
                part = self._parts.read(candidate)
                if self.feed is not None:
                    self.feed.send_part(self._parts, candidate, part)
                else:  # so that the card says which node has which part
                    self._parts.record(candidate.path, candidate.identity, part)

    def note_meeting(self, attempt: int, name: str, node: int, groups: Sequence[Sequence[int]]) -> None:
        """Note which nodes this one has met for an attempt, and which of them see the same directories; () if that is not known."""
        is_first = not groups or any(group[0] == node for group in groups)
        self._records.meetings.put(NodeMeeting(attempt, name, node, len(groups) > 1, is_first))

    def saves(self, avoid: Collection[str]) -> tuple[NodeSave, ...]:
        """Return the saves of several nodes of which this node has a part, or all. Raises CheckpointingError."""
        records = self._records
        rows = []
        for manifest in (*self._parts.present(), *self._whole_saves()):
            lineage, rejection = manifest.about.lineage, records.rejections.get(manifest.path, manifest.identity)
            is_own = manifest.path == records.restored or manifest.about.run == records.job.run_id
            if manifest.path in avoid or (records.own_only and not is_own) or (rejection is not None and rejection.kind != _INCOMPLETE):
                continue
            attempt = 0 if lineage is None or lineage.run != records.job.run_id else lineage.attempt
            rows.append(NodeSave(manifest.save, manifest.path, manifest.step, attempt))
        return tuple(rows[:MOST_OFFERED])

    def _whole_saves(self) -> Iterator[Manifest]:
        return (manifest for manifest in self._records.manifests.all() if manifest.save and identity_of(manifest.path) == manifest.identity)

    def prove_save(self, save: str, *, suspect: bool) -> Proof:
        """Bring all of a save of several nodes here, and prove that this node can load it."""
        try:
            path = next((manifest.path for manifest in self._whole_saves() if manifest.save == save), "")
            if not path and self.restore_save is None:
                return Proof("each node has a part of it, and no --mirror holds them all")
            if not path and self.restore_save is not None:
                sends = any(
                    self.feed is not None and self.feed.is_sending(manifest) for manifest in self._parts.present() if manifest.save == save
                )
                brought = self.restore_save(save)
                if not brought.path:
                    return Proof(brought.reason, missing=brought.is_missing, coming=sends)
                path = brought.path
            identity = identity_of(path)
            if identity is None:
                return Proof(f"{path} is gone")
            here = Candidate(path, identity, step_names.step_in(path), is_directory=True)
            selection = self._selector.select_from(Listing((here,)), (), suspect=suspect, rejections=self._records.rejections)
            chosen, manifest = selection.chosen, self._records.manifests.get(path)
            if chosen is None or manifest is None:
                return _disproof(selection, path)
        except (CheckpointingError, OSError) as error:
            return Proof(str(error), silent=isinstance(error, DiskSilent))
        self._restored[save] = path
        return Proof("", chosen.step, manifest.id, chosen.level, tuple(sorted(nan_weights(chosen.non_finite or ()))))

    def restored_at(self, save: str) -> str:
        """Return where all of a proven save is on this node."""
        return self._restored[save]

    def _directories(self) -> tuple[str, ...]:
        return self._records.locations.roots()

    def sees(self, markers: Sequence[Sequence[DirectoryMarker]], node: int, hosts: Sequence[str]) -> tuple[int, ...]:
        """Return the nodes whose directories this node, number `node`, sees. Search longer for a node that is new here."""
        others = {host for host, marker in zip(hosts, markers, strict=True) if marker} - {hosts[node]}
        nodes = self.markers.seen(markers, node, self.look_s if others - self._apart else 0.0)
        self._apart = frozenset(others - {hosts[number] for number in nodes})
        return nodes

    def note_groups(
        self, groups: Sequence[Sequence[int]], hosts: Sequence[str], markers: Sequence[Sequence[DirectoryMarker]]
    ) -> tuple[str, ...]:
        """Return a line for people if nodes have directories of their own, once for the same nodes."""
        named = tuple(tuple(hosts[node] for node in group) for group in groups)
        if len(named) < 2 or named == self._noted:  # noqa: PLR2004 (one group: all share)
            return ()
        self._noted = named
        places = [", ".join(marker.directory for marker in markers[group[0]]) or "?" for group in groups]
        held = "; ".join(f"{', '.join(alike)}: {place}" for alike, place in zip(named, places, strict=True))
        return (f"the nodes do not share all directories of their checkpoints, and resume only from one that every node has: {held}",)

    def reject_mixed(self, since_t: float) -> None:
        """Reject for good every checkpoint written since `since_t` (wall time), and remove our copies of them.

        From then on the nodes trained from different states. Raises CheckpointingError, OSError.
        """
        since_ns = int((since_t - FILE_CLOCKS_S) * 1e9)
        written = [candidate for candidate in self._records.locations.listing(candidates=True).candidates if candidate.mtime_ns >= since_ns]
        self._records.rejections.add([(candidate.path, candidate.identity, _MIXED) for candidate in written], "mixed")
        for copy in self._records.copies.all():
            if copy.made_ns >= since_ns:
                self._records.copies.remove(copy)

    def list_checkpoints(self, avoid: Collection[str], agreed_attempts: Collection[int]) -> tuple[tuple[NodeCheckpoint, ...], Selection]:
        """List the checkpoints that this node could resume from, newest first, and the reasons against the rest. Reads no tensor data.

        From here until the attempt begins, retention removes nothing.
        agreed_attempts: those of this run that began with an agreement of the nodes. Raises CheckpointingError, OSError.
        """
        records = self._records
        self._retention.pause()
        records.order.step_back(avoid, records.copies)
        listing = records.listed(records.resumable)
        self._listed = listing.candidates
        whole = tuple(
            candidate
            for candidate in listing.candidates
            if not candidate.is_directory or self._parts.manifests.of(candidate.path, candidate.identity) is None
        )
        options = self._selector.options(self._selector.copies(), avoid, suspect=False, rejections=records.rejections)
        rows, selection = held(replace(listing, candidates=whole), options)
        self._offered = {}
        for offered, step in rows[:MOST_OFFERED]:
            row = self._row(offered, step, agreed_attempts)
            if row is not None:
                self._offered[row] = offered
        return tuple(self._offered), selection

    def _row(self, candidate: Candidate | Spare, step: int | None, agreed_attempts: Collection[int]) -> NodeCheckpoint | None:
        if isinstance(candidate, Spare):
            path, name, identity, digest = (
                candidate.copy_path,
                candidate.manifest.name,
                identity_of(candidate.copy_path),
                candidate.manifest.id,
            )
        else:
            manifest = self._records.manifests.of(candidate.path, candidate.identity)
            path, name, identity = candidate.path, os.path.basename(candidate.path), candidate.identity  # noqa: PTH119 (strings throughout)
            digest = "" if manifest is None else manifest.id
        if identity is None:
            return None
        origin = self._records.provenance.of(path, identity)
        logged = origin.logged_attempt
        written_in = 0 if origin.is_interrupted or logged is None or logged not in agreed_attempts else logged
        return NodeCheckpoint(path, name, step, identity.size, identity.mtime_ns, identity.ino, digest, written_in)

    def prove(self, candidate: Sequence[NodeCheckpoint], node: int, *, suspect: bool) -> Proof:
        """Prove that this node, number `node`, can load its row of a candidate. Of the nodes that share a file, one reads it."""
        row = candidate[node]
        offered = self._offered[row]
        try:
            identity = identity_of(row.path)
            if identity is None or (identity.ino, identity.size, identity.mtime_ns) != (row.inode, row.n_bytes, row.mtime_ns):
                return Proof(f"{row.path} changed, or is gone")
            if not reads(candidate, node):
                return Proof("" if os.access(row.path, os.R_OK) else f"{row.path} cannot be read")
            listing, copies = (Listing(()), (offered,)) if isinstance(offered, Spare) else (Listing((offered,)), ())
            selection = self._selector.select_from(listing, copies, suspect=suspect, rejections=self._records.rejections)
            chosen = selection.chosen
            if chosen is None:
                return _disproof(selection, row.path)
            digest = row.digest
            if not is_shared(candidate) and not isinstance(offered, Spare):
                manifest = self._records.reads.read(
                    chosen.path,
                    lambda how: self._recorder.record_verified(chosen, how),
                    device=identity.dev,
                    n_bytes=identity.size,
                    why="its digest is to be compared with the other nodes'",
                )
                digest = manifest.id if manifest is not None else ""
            return Proof("", chosen.step, digest, chosen.level, tuple(sorted(nan_weights(chosen.non_finite or ()))))
        except Interrupted:
            return Proof(f"{row.path}: {NOT_TO_THE_END}")
        except (CheckpointingError, OSError) as error:
            return Proof(f"{row.path}: {error}", silent=isinstance(error, DiskSilent))

    def take_notes(self, chosen: str) -> tuple[str, ...]:
        """Return what a person should know of the run's beginning, once, where the nodes chose this checkpoint ("": none)."""
        return self._records.take_notes(self._listed, chosen)

    def take(self, path: str) -> None:
        """Protect the checkpoint of the attempt from pruning."""
        self._retention.use(path)


def _disproof(selection: Selection, path: str) -> Proof:
    """Return why a node cannot load a checkpoint."""
    whys = (*selection.torn, *selection.dangerous, *selection.unverifiable, *selection.unknown, *selection.foreign)
    return Proof(": ".join(whys[0]) if whys else f"{path} is not whole", silent=bool(selection.silent))
