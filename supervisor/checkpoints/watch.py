"""Records, copies, sends and reports each checkpoint that the watcher finds whole, and removes older ones."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from checkpointing import step_names
from checkpointing.io.listing_cache import ListingCache
from checkpointing.manifest import check
from checkpointing.model import Verdict, Verification
from supervisor.checkpoints.origin.owners import CheckpointOwners
from supervisor.checkpoints.origin.provenance import CheckpointWriter
from supervisor.checkpoints.recording.reports import CheckpointFound, SavesCounted, SavesMissed, SavesShared, WatcherFailed
from supervisor.checkpoints.recording.watcher import CheckpointWatcher, to_ref
from supervisor.config.intervals import SCAN_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpointing.discover import Listing
    from checkpointing.model import Candidate
    from checkpointing.reader.messages import CheckpointRead
    from checkpointing.reader.one_pass import CheckpointReader
    from supervisor.checkpoints.mirror.feed import MirrorFeed
    from supervisor.checkpoints.recording.newest_save import NewestSave
    from supervisor.checkpoints.recording.parts import PartRecorder
    from supervisor.checkpoints.recording.recorder import CheckpointRecorder
    from supervisor.checkpoints.recording.reports import CheckpointReport
    from supervisor.checkpoints.recording.shared_manifests import SharedManifests
    from supervisor.checkpoints.records import CheckpointRecords
    from supervisor.checkpoints.retention import Retention


class CheckpointWatch:
    """Does the work of the watcher's thread for one job."""

    def __init__(  # noqa: PLR0913 -- the steps for a checkpoint, in this order
        self,
        records: CheckpointRecords,
        recorder: CheckpointRecorder,
        shared: SharedManifests,
        retention: Retention,
        parts: PartRecorder,
        *,
        newest_save: NewestSave,
        feed: MirrorFeed | None,
        has_rank_0: Callable[[], bool | None],
        reader: CheckpointReader,
        report: Callable[[CheckpointReport], None],
    ) -> None:
        """`feed`: None without a mirror. `has_rank_0`: see MirrorFeed."""
        self._records, self._recorder, self._shared, self._retention = records, recorder, shared, retention
        self._feed, self._has_rank_0, self._report, self._parts = feed, has_rank_0, report, parts
        self._newest_save = newest_save
        self._owners = CheckpointOwners(records)
        self._is_first_look = True
        self._counted = ""  # how many saves the mirrors hold, as it was reported
        self._is_covered = False  # a declared pattern finds what the ranks save, or it was reported that none does
        self._missed: frozenset[str] = frozenset()  # saves that the patterns did not find at the last look
        self._listed = ListingCache()
        self.watcher = CheckpointWatcher(
            self._look,
            self._verified,
            records.cache,
            reader,
            order=records.order.order,
            is_wanted=self._may_be_pruned,
            interval_s=SCAN_S,
            on_trouble=lambda text: report(WatcherFailed(text)),
            own=records.provenance.trusts,
            elsewhere=self._found_elsewhere,
            is_ended=self._is_save_ended,
            has_news=self._has_news,
            is_recorded=recorder.is_recorded,
            may_be_part=lambda candidate: feed is not None and candidate.is_directory and parts.is_to_be_read(candidate),
            key_of=lambda candidate: "" if feed is None else feed.key_of(candidate),
            copying=retention.copying,
            on_incomplete=self._incomplete,
        )

    def _look(self) -> Listing:
        records = self._records
        if self._is_first_look:  # in the watcher's thread, for there may be many
            self._is_first_look = False
            records.begin_run()
            records.manifests.sweep()
            self._parts.manifests.sweep()
            records.mirrored.sweep()
        records.absorb()
        if records.discovery is not None and (shared := records.discovery.shared_saves.take()) is not None:
            self._report(SavesShared(shared.path, shared.ranks))
        self._newest_save.read()
        self._newest_save.look()
        for save in () if self._feed is None else self._feed.newly_whole(self._parts):
            self._retention.prune(save, self._recorder, self._feed, self._parts)
        for path in self._unread_saves():
            self._listed.forget(path)
        listing = records.locations.listing(candidates=True, cache=None if self.watcher.is_finishing else self._listed)
        self._listed.end_listing()
        if self._feed is not None:
            self._feed.send_known(listing)
            self._count_saves(self._feed)
        self._report_missed(listing)
        return listing

    def _has_news(self) -> bool:
        """Read the save logs, some times a second. Return whether a file that was written in place is to be read."""
        is_new = self._records.absorb()
        if is_new:
            self._newest_save.read()
        self._newest_save.look()
        return is_new and bool(self._unread_saves())

    def _count_saves(self, feed: MirrorFeed) -> None:
        """Report how many saves the mirrors hold, whenever that changed."""
        saves = feed.saves()
        text = "; ".join(map(str, saves))
        if text != self._counted and any(row.saved for row in saves):
            self._counted = text
            self._report(SavesCounted(text))

    def _report_missed(self, listing: Listing) -> None:
        """Report once that the declared patterns find none of the checkpoints that ranks saved; not before two looks saw that.

        Between the two, a script may give the file its final name.
        """
        records, discovery = self._records, self._records.discovery
        if discovery is None or not records.job.settings.checkpoints.paths or self._is_covered:
            return
        saved = [path for path in discovery.saved() if not step_names.is_temporary(path) and os.path.lexists(path)]
        self._is_covered = bool(saved) and any(map(records.locations.covers(listing), saved))
        if not saved or self._is_covered or saved[0] not in self._missed:
            self._missed = frozenset(saved)
            return
        self._is_covered = True
        self._report(SavesMissed(saved[0], records.job.settings.checkpoints.paths, records.locations.instead_of(saved[0])))

    def _verified(self, verification: Verification, answer: CheckpointRead, is_new: bool) -> None:  # noqa: FBT001 (the watcher's)
        manifest = self._recorder.record(answer, by_another_node=self._has_rank_0() is False)
        if manifest is not None:
            self._recorder.note_newest(manifest)
            self._retention.keep_copy(manifest, answer, self._recorder)
            if self._feed is not None:
                self._feed.send(manifest)
            self._retention.check_space(manifest)
            self._retention.prune(manifest, self._recorder, self._feed, self._parts)
        if self._records.locations.is_likely(verification.path):
            self._recorder.note_checkpoint(verification.path)
        if is_new and self._records.locations.is_checkpoint(verification.path) and not self._owners.is_foreign(verification.path):
            ref = to_ref(verification if manifest is None else replace(verification, level=check.LEVEL))
            self._report(CheckpointFound(ref, self._attempt_of(verification)))

    def _incomplete(self, candidate: Candidate, answer: CheckpointRead) -> bool:
        """Record and send the part of a checkpoint of several nodes, and check the room for the next. Return False while it is saved."""
        if self._feed is None or not candidate.is_directory:
            return True
        if self._parts.is_under_way(candidate.path):
            return self.watcher.is_finishing
        manifest = self._feed.send_part(self._parts, candidate, answer.part)
        if manifest is not None:
            self._retention.check_space(manifest)
        return True

    def _attempt_of(self, verification: Verification) -> int:
        """Return the attempt of this run that saved a checkpoint, 0 where none did."""
        try:
            mtime_ns = os.stat(verification.path).st_mtime_ns  # noqa: PTH116 (strings throughout)
        except OSError:
            return 0
        return self._records.provenance.of(verification.path, verification.identity, mtime_ns).attempt_of(self._records.job.run_id)

    def _unread_saves(self) -> tuple[str, ...]:
        """Return the files written in place of which a rank ended a save, and that were not verified since."""
        discovery = self._records.discovery
        ended = () if discovery is None else discovery.ended()
        return self._records.locations.saved_in_place(write.path for write in ended if not self._recorder.has_recorded(write))

    def _is_save_ended(self, candidate: Candidate) -> bool:
        discovery = self._records.discovery
        return discovery is not None and discovery.is_ended(candidate.path, candidate.identity)

    def _found_elsewhere(self, candidate: Candidate) -> Verification | None:
        """Return what another node found of a checkpoint; WRITING while it is to read it; None where this node is.

        A file is read by the node whose ranks saved it, anything else by the node of rank 0. A file that this node does not record in time,
        or where it does not share the state directory, each node reads for itself.
        """
        path, identity = candidate.path, candidate.identity
        if not self._records.several_nodes or self._is_read_here(candidate):
            return None
        adopted = self._recorder.adopt(path, identity)
        if adopted is not None:
            return Verification(
                path,
                identity,
                Verdict.VERIFIED,
                step=adopted.step,
                level=check.LEVEL,
                within=adopted.within,
                epoch=adopted.epoch,
                content_step=adopted.content_step,
            )
        if self.watcher.is_finishing or not self._shared.is_worth_waiting(path, identity):
            return None
        return Verification(path, identity, Verdict.WRITING, "another node reads it")

    def _is_read_here(self, candidate: Candidate) -> bool:
        path, identity = candidate.path, candidate.identity
        if not candidate.is_directory and self._shared.is_saved_by_another(path, identity, self._records.discovery):
            return False
        is_file_of_ranks = (
            not candidate.is_directory and self._records.provenance.of(path, identity, candidate.mtime_ns).writer is CheckpointWriter.RANKS
        )
        return is_file_of_ranks or bool(self._has_rank_0())

    def _may_be_pruned(self, candidate: Candidate) -> bool:
        """Return whether one from before our start is to be recorded: `checkpoints.keep` removes only recorded ones of this run."""
        records = self._records
        if not records.job.settings.checkpoints.keep:
            return False
        return records.provenance.of(candidate.path, candidate.identity, candidate.written_ns).lineage.run == records.job.run_id
