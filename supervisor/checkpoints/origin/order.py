"""The order of a job's checkpoints on this node: which run and attempt wrote each, and which a step back gave up.

A manifest, written when the checkpoint was verified, holds its lineage. Without one, the checkpoint belongs to the attempt that ran at its
modification time (checkpointing/lineage.py). All but `attempt_begins` reads files: call it in worker threads.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from checkpointing.lineage import Lineages
from checkpointing.manifest.documents import is_same
from checkpointing.model import UNKNOWN_LINEAGE
from checkpointing.ordering import Order, RollBack
from checkpointing.verification import identity_of, verify
from supervisor.checkpoints.discovery.from_logs import read_last_run

if TYPE_CHECKING:
    from collections.abc import Collection

    from checkpointing.catalogue import CheckpointCatalogue
    from checkpointing.manifest.documents import Manifest, Manifests
    from checkpointing.model import Candidate, Identity, Lineage
    from checkpointing.retention.copies import Copies
    from supervisor.checkpoints.discovery.from_logs import Discovery


class CheckpointOrder:
    """The lineages of one job's checkpoints. `run` "" only reads."""

    def __init__(self, catalogue: CheckpointCatalogue, manifests: Manifests, discovery: Discovery | None = None, run: str = "") -> None:
        """Read the records."""
        self._directory, self._manifests, self._discovery = catalogue.file.parent, manifests, discovery
        self._catalogue, self._lineages = catalogue, Lineages(catalogue, run)
        self._read: dict[str, tuple[Identity, Lineage]] = {}  # by path, from manifests: that of a large directory takes long to read
        self.is_abandoned = self._lineages.is_abandoned

    def begin_run(self, copies: Copies) -> tuple[str, ...]:
        """Take this run down, once, before anything is selected or recorded. Returns what a person should know.

        Where a checkpoint is gone that is written in place, and no save of it was cut off, a person removed it to begin anew: the kept
        of it is not used again. A file system that is not mounted has removed nothing. If a later one stayed, the script may have removed
        the others as too old: that is not reported.
        """
        # a job that moved to another host, on a disk that both see, finds its own files there
        others = sorted(self._directory.parent.parent.glob(f"*/{self._directory.name}"))
        if not self._lineages.begin_run(self._manifests.all, other_directories=[other for other in others if other != self._directory]):
            return ()
        before = read_last_run(self._catalogue)
        newest = {copy.manifest.path: copy for copy in copies.all()}
        gone = [path for path, copy in newest.items() if _is_gone(copy.manifest) and not any(w.interrupted for w in before.writes(path))]
        for path in gone:
            self._lineages.abandon(path)
        latest_ns = max((copy.manifest.saved_ns for path, copy in newest.items() if path not in gone), default=0)
        removed = [path for path in gone if newest[path].manifest.saved_ns > latest_ns]
        return tuple(f"{path} was removed before this run, so its kept copy is not used: {newest[path].place}" for path in removed)

    def attempt_begins(self, attempt: int) -> None:
        """Record that an attempt's ranks are started. Does not wait for a disk."""
        self._lineages.begin_attempt(attempt, time.time_ns())

    def restored(self, began: int) -> None:
        """Make this run later than the run whose checkpoint was restored for it."""
        self._lineages.raise_began(began)

    def write(self) -> None:
        """Write the lineages to their file if they changed."""
        self._lineages.write()

    def order(self) -> Order:
        """Return the order as it is known now."""
        return Order(lambda candidate: self.lineage_of(candidate.path, candidate.identity, candidate.written_ns), self._lineages.roll_backs)

    def lineage_of(self, path: str, identity: Identity, mtime_ns: int) -> Lineage:
        """Return who wrote what has this identity."""
        read = self._read.get(path)
        if read is not None and read[0] == identity:
            return read[1]
        manifest = self._manifests.facts(path)
        if manifest is not None and is_same(identity, manifest) and manifest.about.began is not None:
            lineage = manifest.about.lineage or UNKNOWN_LINEAGE
            self._read[path] = identity, lineage
            return lineage
        attempt = None if self._discovery is None else self._discovery.attempt_of(path, identity)
        return self._lineages.attempt_at(mtime_ns) if attempt is None else self._lineages.of_attempt(attempt)

    def step_back(self, avoid: Collection[str], copies: Copies) -> None:
        """Step back from each path that is to be avoided, in this run: `accuse` records it for the runs after it.

        A path stays among `avoid` for attempts. Only what a later attempt saved there beyond the first trouble is a step back of its own.
        """
        if not avoid:
            return
        kept = {copy.place: copy.manifest for copy in copies.all()}
        last = self._lineages.current
        for path in avoid:
            known = kept.get(path) or self._manifests.get(path)
            home = path if known is None else known.path
            step = self._step_of(path) if known is None else known.step
            earlier = [roll_back for roll_back in self._lineages.roll_backs if roll_back.last.run == last.run and roll_back.path == home]
            lineage = (known and known.about.lineage) or UNKNOWN_LINEAGE
            if all(lineage > roll_back.last and (step or 0) > (roll_back.step or 0) for roll_back in earlier):
                self._lineages.try_roll_back(RollBack(last, step, home, "" if known is None else known.id))

    def accuse(self, reason: str) -> tuple[RollBack, ...]:
        """Record what this run stepped back from, since an attempt trained from an older checkpoint: it outlives the run. Return it."""
        return self._lineages.accuse(reason)

    def gives_up(self, row: RollBack, candidate: Candidate) -> bool:
        """Return whether a step back gave up a checkpoint, by what its name and its manifest say."""
        lineage, step = self.age_of(candidate)
        manifest = self._manifests.get(candidate.path)
        content = manifest.id if manifest is not None and is_same(candidate.identity, manifest) else ""
        return row.covers(lineage, None if step < 0 else step, candidate.path, content)

    def age_of(self, candidate: Candidate) -> tuple[Lineage, int]:
        """Return who wrote a checkpoint, and its step by its manifest or its name; -1 where neither gives one."""
        manifest = self._manifests.facts(candidate.path)
        is_known = manifest is not None and is_same(candidate.identity, manifest)
        step = manifest.step if manifest is not None and is_known else candidate.named.step if candidate.named is not None else None
        lineage = self.lineage_of(candidate.path, candidate.identity, candidate.written_ns)
        return lineage, -1 if step is None else step

    @property
    def roll_backs(self) -> tuple[RollBack, ...]:
        """The steps back of all runs."""
        return self._lineages.roll_backs

    def _step_of(self, path: str) -> int | None:
        return None if identity_of(path) is None else verify(path, bulk=False).step


def _is_gone(manifest: Manifest) -> bool:
    """Say whether a checkpoint is not there any more, on the file system on which it was."""
    if os.path.lexists(manifest.path):
        return False
    above = os.path.dirname(manifest.path)  # noqa: PTH120 (strings throughout)
    while above != "/":
        try:
            return os.stat(above).st_dev == manifest.identity.dev  # noqa: PTH116 (as above)
        except FileNotFoundError:
            above = os.path.dirname(above)  # noqa: PTH120 (as above)
        except OSError:
            return False
    return False
