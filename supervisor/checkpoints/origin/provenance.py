"""Finds out who wrote a checkpoint, for the order, trust, copies, the mirror and the agreement of nodes.

Three sources answer that. The save log of this node's ranks is sure (discovery.py). A manifest holds it since the checkpoint was verified;
without one, the times of the attempts show it (order.py). The baseline lists what lay there before the job wrote anything.

The baseline is not the same fact as an unknown lineage. A lineage comes from a file's time, and an old file that somebody moves here while
the job runs keeps its old time. The baseline compares identities, whatever the clock of a file server says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from checkpointing.model import Lineage, is_unchanged
from checkpointing.verification import identity_of

if TYPE_CHECKING:
    from checkpointing.manifest.documents import Manifests
    from checkpointing.model import Identity
    from supervisor.checkpoints.discovery.from_logs import Discovery
    from supervisor.checkpoints.discovery.locations import CheckpointLocations
    from supervisor.checkpoints.origin.baseline import Baseline
    from supervisor.checkpoints.origin.order import CheckpointOrder
    from supervisor.job.job import Job


class CheckpointWriter(Enum):
    """The writer of a checkpoint, as far as this node knows."""

    #: Ranks of this node logged a save of it, in this run or the one before.
    RANKS = auto()
    #: No save of it was logged, and it came to a declared path after the job began: a plain `open`, C++, another process or another node.
    UNLOGGED = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class CheckpointOrigin:
    """The writer of a checkpoint, and the time."""

    writer: CheckpointWriter
    #: Run and attempt, from the records or else from the time; UNKNOWN_LINEAGE if neither shows it.
    lineage: Lineage
    #: The attempt of this run whose logged save left a file as it is, or was the last into a directory; None: no such save.
    logged_attempt: int | None
    #: A logged save of it did not end.
    is_interrupted: bool

    def attempt_of(self, run: str) -> int:
        """Return the attempt of a run that wrote it, 0 if none did."""
        return self.lineage.attempt if self.lineage.run == run else 0


class Provenance:
    """Finds out who wrote the checkpoints of one job on this node."""

    def __init__(  # noqa: PLR0913 -- the sources
        self,
        job: Job,
        locations: CheckpointLocations,
        discovery: Discovery | None,
        order: CheckpointOrder,
        *,
        manifests: Manifests,
        baseline: Baseline,
        several_nodes: bool,
    ) -> None:
        """`several_nodes`: ranks of other nodes write checkpoints too, and their save logs are not here."""
        self._is_all_trusted = discovery is None or several_nodes
        self._are_declared_trusted = job.settings.checkpoints.trusted
        self._locations, self._discovery, self._order = locations, discovery, order
        self._manifests, self._baseline = manifests, baseline

    def of(self, path: str, identity: Identity, mtime_ns: int = 0) -> CheckpointOrigin:
        """Return who wrote a content. mtime_ns: when it was written, for a directory the time of its newest file; 0: not known."""
        lineage = self._order.lineage_of(path, identity, mtime_ns)
        if self._discovery is None:
            return CheckpointOrigin(self._unlogged(path, identity), lineage, None, is_interrupted=False)
        writes = self._discovery.writes(path)
        writer = CheckpointWriter.RANKS if writes or self._discovery.wrote_earlier(path) else self._unlogged(path, identity)
        return CheckpointOrigin(writer, lineage, self.logged_attempt(path, identity), any(write.interrupted for write in writes))

    def logged_attempt(self, path: str, identity: Identity) -> int | None:
        """Return the attempt whose logged save left this content; see CheckpointOrigin. Nothing is read."""
        if self._discovery is None:
            return None
        writes = self._discovery.writes(path)
        in_directory = max((write.attempt for write in writes if write.path != path or write.is_directory), default=None)
        return self._discovery.attempt_of(path, identity) if in_directory is None else in_directory

    def _unlogged(self, path: str, identity: Identity) -> CheckpointWriter:
        is_new = self._locations.is_declared(path) and not self._baseline.has(path, identity)
        return CheckpointWriter.UNLOGGED if is_new else CheckpointWriter.UNKNOWN

    def trusts(self, path: str) -> bool:
        """Return whether this job wrote what lies at a path, so that calls of its own classes in it are not a danger.

        A content is trusted, and not the path: a file put there since is anybody's. If no save is logged, or ranks of other nodes
        write too, every file is trusted. `checkpoints.trusted` trusts the declared ones.
        """
        if self._is_all_trusted or (self._discovery is not None and self._discovery.is_as_left(path)):
            return True
        if self._are_declared_trusted and self._locations.is_declared(path):
            return True
        identity, recorded = identity_of(path), self._manifests.facts(path)
        if identity is None:
            return False
        if recorded is not None and is_unchanged(identity, recorded.identity):
            return True
        return self._unlogged(path, identity) is CheckpointWriter.UNLOGGED
