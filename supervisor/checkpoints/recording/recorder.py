"""Records each checkpoint that was found whole: its digests, who wrote it, and whether numbers in it turned to NaN or Inf."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from checkpointing.manifest.documents import decode
from checkpointing.model import Identity
from checkpointing.ordering import saved_order
from checkpointing.reader.one_pass import digested
from supervisor.checkpoints.recording import numerics
from supervisor.checkpoints.recording.reports import CheckpointAlert, CheckpointTrouble
from supervisor.observe.ranks.path_patterns import pattern_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpointing.io.tree import ReadOptions
    from checkpointing.manifest.documents import Manifest
    from checkpointing.model import Candidate, Verification
    from checkpointing.reader.messages import CheckpointRead
    from supervisor.checkpoints.discovery.record import Write
    from supervisor.checkpoints.recording.reports import CheckpointReport
    from supervisor.checkpoints.recording.shared_manifests import SharedManifests
    from supervisor.checkpoints.records import CheckpointRecords


class CheckpointRecorder:
    """Writes the manifests of one job on this node, in worker threads."""

    def __init__(self, records: CheckpointRecords, shared: SharedManifests, report: Callable[[CheckpointReport], None]) -> None:
        self._records, self._shared, self._report = records, shared, report
        self.newest: dict[str, Manifest] = {}  # of each path, as this run's watcher found it last
        self._checkpoints: set[str] = set()  # paths among these that are likely to be of checkpoints

    def record(self, answer: CheckpointRead, *, by_another_node: bool = False) -> Manifest | None:
        """Record the digests of a whole checkpoint, so that a later change is found. Return None if it changed meanwhile.

        `by_another_node`: a manifest that another node recorded is taken first.
        """
        records, verification = self._records, answer.verification
        if verification is None:
            return None
        records.begin_run()
        known = records.manifests.get(verification.path)
        if known is not None and known.identity == verification.identity:
            return known
        adopted = self.adopt(verification.path, verification.identity) if by_another_node else None
        if adopted is not None or not answer.manifest:
            return adopted  # without digests it is read anew at a standstill
        manifest = self._with_lineage(decode(answer.manifest.encode("ascii")))
        manifest, is_new = self._compared(manifest, known) if manifest.non_finite else (manifest, False)
        self._put(manifest)
        self._report_turned(manifest, is_new=is_new)
        self._compare_later(manifest)
        return manifest

    def record_verified(self, verification: Verification, reading: ReadOptions) -> Manifest | None:
        """Read a whole checkpoint for its digests, unless they are known, and record them. Raises Interrupted."""
        known = self._records.manifests.of(verification.path, verification.identity)
        return known or self.record(digested(verification, self._records.job.name, reading))

    def is_recorded(self, candidate: Candidate) -> bool:
        """Return whether the digests of a checkpoint as it is now are recorded."""
        return self._records.manifests.of(candidate.path, candidate.identity) is not None

    def adopt(self, path: str, identity: Identity) -> Manifest | None:
        """Take over what another node recorded of a checkpoint, as of this node's run: each node counts runs and attempts for itself."""
        manifest = self._shared.recorded(path, identity) if self._records.several_nodes else None
        own = None if manifest is None else self._with_lineage(manifest)
        if own is not None:
            self._put(own)
        return own

    def note_newest(self, manifest: Manifest) -> None:
        """Note what the watcher found at a path last."""
        self.newest[manifest.path] = manifest

    def note_checkpoint(self, path: str) -> None:
        """Note that a path is likely to be that of a checkpoint."""
        self._checkpoints.add(path)

    def has_recorded(self, write: Write) -> bool:
        """Return whether what a save left was found whole in this run."""
        known = self.newest.get(write.path)
        return known is not None and write.after is not None and known.identity == Identity(*write.after)

    def forget(self, path: str) -> None:
        """Drop the records of a checkpoint that was removed."""
        self._records.manifests.forget(path)
        self.newest.pop(path, None)

    def last_of_run(self) -> Manifest | None:
        """Return the newest checkpoint of this run that is recorded. Nothing is read.

        By its time alone, a file that another job saved to the same directory meanwhile is treated as this run's too. What ranks of this
        job were seen to save goes before it.
        """
        order = self._records.order.order()
        own = [save for path, save in list(self.newest.items()) if save.about.run == self._records.job.run_id and path in self._checkpoints]
        logged = [] if self._records.several_nodes else [manifest for manifest in own if self._is_logged(manifest)]
        return next(iter(order.newest_manifests(logged or own)), None)

    def _is_logged(self, manifest: Manifest) -> bool:
        return self._records.provenance.logged_attempt(manifest.path, manifest.identity) is not None

    def numbers(self) -> str:
        """Return in one line whether what this run saved last holds numbers that turned to NaN or Inf; "" where it does not.

        Nothing is read.
        """
        newest = numerics.last_of_run(list(self.newest.values()), self._records.job.run_id)
        return "" if newest is None else numerics.report(newest)

    def _put(self, manifest: Manifest) -> None:
        """Write a manifest after the record of its attempt: else what the attempt saves later would seem older after a power cut.

        Where that fails, it is known all the same until this process ends: a full state directory keeps no checkpoint from the mirror.
        """
        self._records.order.write()
        self._records.manifests.put(manifest)

    def _with_lineage(self, manifest: Manifest) -> Manifest:
        lineage = self._records.provenance.of(manifest.path, manifest.identity, manifest.saved_ns).lineage
        return replace(manifest, about=replace(manifest.about, run=lineage.run, began=lineage.began, attempt=lineage.attempt))

    def _compared(self, manifest: Manifest, before: Manifest | None = None) -> tuple[Manifest, bool]:
        """Note which tensors an earlier save of this run held finite; return also whether that is new: the save before it was not so.

        `before`: the last record of the same path, whose content is gone.
        """
        run = self._records.job.run_id
        elsewhere = numerics.last_before(manifest, self._records.manifests.all(), run)
        last = numerics.last_of_run([manifest for manifest in (elsewhere, before) if manifest is not None], run, pattern_of(manifest.path))
        manifest = replace(manifest, non_finite=numerics.compared(manifest.non_finite, last))
        return manifest, bool(numerics.turned(manifest)) and not (last is not None and numerics.turned(last))

    def _report_turned(self, manifest: Manifest, *, is_new: bool) -> None:
        """Report it once it is recorded, so that a `status` after the alert shows it."""
        if is_new:
            self._report(CheckpointAlert(CheckpointTrouble.NOT_FINITE, numerics.report(manifest)))

    def _compare_later(self, manifest: Manifest) -> None:
        """Compare again those that were saved after it and verified before it: of several at once the newest is read first."""
        pattern, when = pattern_of(manifest.path), saved_order(manifest)
        later = [
            other
            for other in list(self.newest.values())
            if other.non_finite and pattern_of(other.path) == pattern and saved_order(other) > when
        ]
        for newer in sorted(later, key=saved_order):
            is_compared = newer.path != manifest.path and not numerics.turned(newer)
            again, is_new = self._compared(newer) if is_compared else (newer, False)
            if again != newer and self._records.manifests.put(again):
                self._report_turned(again, is_new=is_new)
                self.newest[newer.path] = again
