"""Copies and removes checkpoints on this node's disk by the rule of checkpointing/retention/rules.py, and checks that the next ones fit.

A file that the script writes in place gets a copy, because a kill during the next save leaves it torn. If `checkpoints.keep` is set, the
job's own older checkpoints are removed. Before the disk is full, all copies but the newest are removed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from checkpointing.io.tree import ReadOptions
from checkpointing.model import CheckpointingError
from checkpointing.ordering import saved_order
from checkpointing.reader.messages import CopyPlan
from checkpointing.retention import free_space, rules
from checkpointing.retention.copies import SAVES_LEFT, KeptCopy, Needed, data_of
from checkpointing.retention.prune import PruneRow, prune
from supervisor.checkpoints.recording.reports import CheckpointAlert, CheckpointPruned, CheckpointTrouble
from supervisor.checkpoints.recording.shared_manifests import written_files
from supervisor.checkpoints.references import leads_to
from supervisor.core.units import bytes_text
from supervisor.observe.ranks.path_patterns import pattern_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from checkpointing.io.staging import Staged
    from checkpointing.manifest.documents import Manifest
    from checkpointing.model import Candidate, Identity
    from checkpointing.reader.messages import CheckpointRead
    from checkpointing.retention.copies import Copy
    from supervisor.checkpoints.discovery.from_logs import Discovery
    from supervisor.checkpoints.mirror.feed import MirrorFeed
    from supervisor.checkpoints.recording.parts import PartRecorder
    from supervisor.checkpoints.recording.recorder import CheckpointRecorder
    from supervisor.checkpoints.recording.reports import CheckpointReport
    from supervisor.checkpoints.recording.shared_manifests import SharedManifests
    from supervisor.checkpoints.records import CheckpointRecords


class Retention:
    """Keeps copies and removes old checkpoints of one job.

    `use` and `pause` are called by the selection, `go_on` by the loop's thread, `copy` in any worker thread, all else in the watcher's.
    """

    def __init__(self, records: CheckpointRecords, shared: SharedManifests, report: Callable[[CheckpointReport], None]) -> None:
        self._records, self._shared, self._report = records, shared, report
        self._settings = records.job.settings.checkpoints
        self._in_use: frozenset[str] = frozenset()
        self._pruning = threading.Lock()
        self._is_paused = records.several_nodes  # until the first attempt
        self._staged: Staged | None = None  # where the copy of the file in reading lies
        self._is_short = False
        self._reported: set[str] = set()  # files without a copy
        self._reported_stays: set[tuple[str, str]] = set()  # (path, reason) of checkpoints that were not removed

    def use(self, path: str | None) -> None:
        """Keep the checkpoint or copy that the attempt is given. None: it is given none."""
        self._in_use = frozenset() if path is None else frozenset({path})

    def pause(self) -> None:
        """Remove no checkpoint until `go_on`: the nodes agree on one of those that are here.

        Waits for the removal of one that is under way, and not for those after it: all nodes would wait for them.
        """
        self._is_paused = True
        with self._pruning:
            pass

    def go_on(self) -> None:
        """Note that an attempt begins: older checkpoints may go again. Waits for no disk."""
        self._is_paused = False

    @contextlib.contextmanager
    def copying(self, candidate: Candidate) -> Iterator[CopyPlan | None]:
        """Return a place for the copy of a file that the script writes in place, until `keep_copy` was called; None if it needs none."""
        if not self._needs_copy(candidate.path):
            yield None
            return
        name = candidate.path.rpartition("/")[2]
        with contextlib.ExitStack() as stack:
            try:
                self._staged = stack.enter_context(self._records.copies.staged(name))
                stack.callback(self._forget_staged)
            except OSError:  # `keep_copy` meets it as well, and reports it
                yield None
                return
            yield CopyPlan(data_of(self._staged, name), candidate.identity.size, SAVES_LEFT, self._is_replaced(candidate.path))

    def _forget_staged(self) -> None:
        self._staged = None

    def _needs_copy(self, path: str) -> bool:
        return self._records.locations.is_saved_in_place(path) and self._settings.copies_gib > 0

    def _is_replaced(self, path: str) -> bool:
        """Return whether each save was seen to leave the old file whole until the new one is."""
        discovery = self._records.discovery
        return discovery is not None and discovery.replaces(path)

    def keep_copy(self, manifest: Manifest, answer: CheckpointRead, recorder: CheckpointRecorder) -> None:
        """Keep the copy of a file that the script writes in place: the one that the pass made, or else one by a read of its own.

        An alert, once a file: no copy can be made, and no save was seen to leave the old file whole until the new one is.
        """
        path, copies = manifest.path, self._records.copies
        if not self._needs_copy(path) or manifest.has_lost_weights:
            return
        replaces = self._is_replaced(path)
        kept = self._kept(manifest, answer, may_link=replaces)
        is_lost = kept.copy is None and not kept.is_transient and not replaces and copies.newest_for(path) is None
        is_alone = all(other == path for other in recorder.newest)
        if is_lost and is_alone and path not in self._reported:
            self._reported.add(path)
            text = f"a kill during the next save of {path} would lose it: the file is written in place, and has no copy: {kept.reason}"
            self._report(CheckpointAlert(CheckpointTrouble.NO_COPY, text))

    def _kept(self, manifest: Manifest, answer: CheckpointRead, *, may_link: bool) -> KeptCopy:
        copies, needed = self._records.copies, Needed(self._in_use)
        if answer.copy_problem:
            return KeptCopy(None, answer.copy_problem)
        if self._staged is None or not answer.copied:
            return copies.keep(manifest, self._policy, needed, may_link=may_link, reading=ReadOptions(drop_cache=True))
        try:
            return copies.complete(self._staged, manifest, self._policy, needed)
        except OSError as error:
            return KeptCopy(None, f"it could not be copied: {error.strerror or error}")

    def copy(self, manifest: Manifest, most_copied_bytes: int) -> tuple[Copy | None, str]:
        """Copy a checkpoint whose original may be overwritten soon; return the copy, or None and the reason. In any worker thread."""
        kept = self._records.copies.keep(
            manifest,
            self._policy,
            Needed(self._in_use),
            may_link=self._is_replaced(manifest.path),
            reading=ReadOptions(drop_cache=True),
            most_copied_bytes=most_copied_bytes,
        )
        return kept.copy, kept.reason

    def check_space(self, manifest: Manifest) -> None:
        """Report once when the next checkpoints will not fit. A file that is written in place needs no more room than it has."""
        if self._records.locations.is_saved_in_place(manifest.path):
            return
        forecast = free_space.forecast(os.path.dirname(manifest.path), manifest.n_bytes)  # noqa: PTH120 (strings throughout)
        directory = forecast.directory
        if forecast.room is free_space.Room.SHORT and not self._is_short:
            text = f"{_shortage_text(forecast)}{self._remove_copies(directory)}"
            self._report(CheckpointAlert(CheckpointTrouble.DISK_FILLING, text))
        elif self._is_short and forecast.room is free_space.Room.ENOUGH:
            self._report(CheckpointAlert(CheckpointTrouble.DISK_FILLING, f"there is room again in {directory}", is_over=True))
        if forecast.room is not free_space.Room.UNKNOWN:
            self._is_short = forecast.room is free_space.Room.SHORT

    def prune(self, verified: Manifest, recorder: CheckpointRecorder, feed: MirrorFeed | None, parts: PartRecorder) -> None:
        """Remove this job's older checkpoints of the same location, where `checkpoints.keep` asks for it.

        `verified` was just read, or is this node's part of a save that a mirror has whole.
        """
        with self._pruning:
            if not self._is_paused:
                self._prune(verified, recorder, feed, parts)

    def _prune(self, verified: Manifest, recorder: CheckpointRecorder, feed: MirrorFeed | None, parts: PartRecorder) -> None:
        discovery = self._records.discovery
        if not self._settings.keep or discovery is None or not self._records.locations.is_checkpoint(verified.path):
            return
        pattern, order = pattern_of(verified.path), self._records.order.order()
        whole_saves = [manifest for manifest in ([] if feed is None else feed.whole(parts)) if pattern_of(manifest.path) == pattern]
        # of those that are read in one look the newest comes first, and is for those that it lets go
        read = [manifest for manifest in recorder.newest.values() if pattern_of(manifest.path) == pattern]
        newest = next(iter(order.newest_manifests([*read, *whole_saves])), None)
        if newest is None:  # the script saves there anew since the part was found whole
            return
        rows = self._rows(pattern, discovery, feed, whole_saves)
        for done in prune(rows, self._policy, newest.path, self._records.catalogue, order, goes_on=lambda: not self._is_paused):
            if not done.reason:
                recorder.forget(done.path)
                parts.manifests.forget(done.path)
            if not done.reason or (done.path, done.reason) not in self._reported_stays:
                self._reported_stays.add((done.path, done.reason))
                self._report(CheckpointPruned(done.path, done.step, done.reason))

    def _rows(self, pattern: str, discovery: Discovery, feed: MirrorFeed | None, whole_saves: list[Manifest]) -> list[PruneRow]:
        records = self._records
        recorded = (manifest for manifest in records.manifests.all() if pattern_of(manifest.path) == pattern)
        by_path = {manifest.path: manifest for manifest in recorded if records.locations.is_checkpoint(manifest.path)}
        other_nodes = self._shared.last_runs() if records.several_nodes else ()
        # the identity of these parts was compared just now, so the record of a whole checkpoint at the same path is of an earlier content
        here = list((by_path | {manifest.path: manifest for manifest in whole_saves}).values())
        # the nodes order saves by the step and the run of the whole, which a part may lack: so those that were saved last stay, too
        last = {manifest.path for manifest in sorted(whole_saves, key=saved_order)[-self._policy.newest :]}
        return [
            PruneRow(
                manifest,
                _written_files(manifest, discovery, other_nodes),
                in_use=manifest.path in self._in_use | last,
                uploading=feed is not None and feed.is_sending(manifest),
                is_rejected=self._is_rejected(manifest),
                leads=leads_to(manifest.path),
            )
            for manifest in here
        ]

    def _is_rejected(self, manifest: Manifest) -> bool:
        try:
            return self._records.rejections.get(manifest.path, manifest.identity) is not None
        except CheckpointingError:  # the selection reports it
            return True

    def _remove_copies(self, directory: str) -> str:
        """Remove our copies but the newest if they are on the disk that is short; return a description."""
        try:
            if os.stat(directory).st_dev != os.stat(self._records.directory).st_dev:  # noqa: PTH116 (strings throughout)
                return ""
        except OSError:
            return ""
        removed = self._records.copies.prune(rules.RetentionPolicy(1), Needed(in_use=self._in_use)).removed
        return f"; {len(removed)} older backup copies were removed" if removed else ""

    @property
    def _policy(self) -> rules.RetentionPolicy:
        """Return the backup copies that stay, and the job's own checkpoints that do where a person set a limit."""
        return rules.RetentionPolicy(self._settings.keep or rules.RetentionPolicy().newest, self._settings.keep_every or None)


def _shortage_text(forecast: free_space.Forecast) -> str:
    """Return which of the next checkpoints will not fit, and why."""
    size, free = bytes_text(forecast.save_bytes), bytes_text(forecast.free_bytes)
    if forecast.reason:
        return f"the next checkpoint ({size}) will not fit into {forecast.directory}: {forecast.reason}"
    if not forecast.n_saves:
        return f"{forecast.directory} is full ({free} free): the next checkpoint ({size}) will not fit"
    return f"{forecast.directory} is nearly full ({free} free): the next checkpoint ({size}) fits, and the one after it will not"


def _written_files(manifest: Manifest, discovery: Discovery, other_nodes: Iterable[Discovery]) -> dict[str, Identity]:
    """Return the files of a checkpoint that this job was seen to write: by ranks of this node, and of those that share its state."""
    path, identity, until_ns = manifest.path, manifest.identity, (manifest.made_unix_s + 1) * 10**9
    files: dict[str, Identity] = {}
    for other in other_nodes:
        files |= written_files(other, path, until_ns, identity)
    return files | discovery.written_files(path, until_ns, identity)
