"""The checkpoints of one job on this node: where they are, which one an attempt begins with, and the records of them.

This module only joins the parts. Nothing in them fails a job: what goes wrong is in the answer, in a report, or in `problems`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from checkpointing.io.read_watch import ReadWatch
from checkpointing.manifest import check
from checkpointing.manifest.documents import decode
from checkpointing.mirror import keys
from checkpointing.model import is_unchanged
from checkpointing.reader.one_pass import OnePass
from checkpointing.verification import identity_of
from supervisor.checkpoints import accusations
from supervisor.checkpoints.mirror.feed import MirrorFeed
from supervisor.checkpoints.mirror.restore_process import PARTS_MISSING
from supervisor.checkpoints.node_offer import NodeOffer, SaveRestored
from supervisor.checkpoints.origin.owners import CheckpointOwners
from supervisor.checkpoints.path_faults import PathFaults
from supervisor.checkpoints.recording.newest_save import NewestSave
from supervisor.checkpoints.recording.parts import PartRecorder
from supervisor.checkpoints.recording.recorder import CheckpointRecorder
from supervisor.checkpoints.recording.reports import ReadMoved, ReadReported
from supervisor.checkpoints.recording.shared_manifests import SharedManifests
from supervisor.checkpoints.recording.watcher import ref_of
from supervisor.checkpoints.records import DIRECTORY, CheckpointRecords
from supervisor.checkpoints.repair import CheckpointRepair, RepairPermission
from supervisor.checkpoints.retention import Retention
from supervisor.checkpoints.selection import CheckpointSelector
from supervisor.checkpoints.unused import UnusedCopies
from supervisor.checkpoints.watch import CheckpointWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from checkpointing.discover import Listing
    from checkpointing.reader.one_pass import CheckpointReader
    from supervisor.checkpoints.mirror.feed import CheckpointSender
    from supervisor.checkpoints.mirror.restore_process import MirrorManifest, RestoreAnswer
    from supervisor.checkpoints.recording.reports import CheckpointReport
    from supervisor.checkpoints.recording.watcher import CheckpointWatcher
    from supervisor.core.checkpoint_model import LoadedCheckpoint
    from supervisor.core.events import CheckpointSelected
    from supervisor.core.model import CheckpointRef, Evidence
    from supervisor.job.job import Job


class JobCheckpoints:
    """The checkpoints of one job on this node. Worker threads call it, but for what waits for no disk and says so."""

    def __init__(self, job: Job, report: Callable[[CheckpointReport], None], *, several_nodes: bool = False) -> None:
        """Read what earlier runs recorded. `report` is called in worker threads. `several_nodes`: ranks elsewhere write checkpoints too."""
        self._job, self._report = job, report
        reads = ReadWatch(report=lambda level, text: report(ReadReported(level, text)), moved=lambda: report(ReadMoved()))
        self.records = CheckpointRecords(job, several_nodes=several_nodes, reads=reads)
        self.shared = SharedManifests(job.state, DIRECTORY)
        self.recorder = CheckpointRecorder(self.records, self.shared, report)
        self.retention = Retention(self.records, self.shared, report)
        discovery = self.records.discovery
        self._repair = None if discovery is None else CheckpointRepair(self.records, discovery)
        self._path_faults = PathFaults(self.records, self._repair)
        self._newest_save = NewestSave(self.records, report)
        self._selector = CheckpointSelector(self.records, self.retention, self._repair)
        self._unused = UnusedCopies(self.records, self.retention, self.recorder, report)
        self._owners = CheckpointOwners(self.records)
        self._parts = PartRecorder(self.records)
        self.node_offer = NodeOffer(self.records, self._selector, self.recorder, self.retention, self._parts)

    @property
    def problems(self) -> tuple[str, ...]:
        """The last failed reads and records, each in one line."""
        return self.records.problems

    def began(self, attempt: int) -> None:
        """Note that an attempt's ranks are started. From the loop's thread."""
        self.records.begin_attempt(attempt)
        self.retention.go_on()

    def ended(self) -> None:
        """Note that no rank is left: later files are not this job's. From the loop's thread."""
        if self._repair is not None:
            self._repair.ranks_ended()

    def belongs_to_job(self, path: str) -> bool:
        """Return whether a path lies where this job's checkpoints are declared, or where it was seen to save. Reads nothing."""
        return self.records.locations.belongs_to_job(path)

    def listing(self) -> Listing:
        """List the checkpoints that are declared or discovered. Raises DiskSilent."""
        return self.records.listed(self.records.locations.listing)

    def note_move(self) -> None:
        """Note that a selection continues without reading: a mirror sends, or the other nodes answered."""
        self.records.reads.note_move()

    def read_while(self, is_wanted: Callable[[], bool]) -> None:
        """Have the reads of a selection end once nobody waits for them. From the loop's thread: awaits no disk."""
        self.records.reads.is_wanted = is_wanted

    def set_resume_way(self, resume_by: str, *, own_only: bool = False) -> None:
        """Set by whose knob the next attempt gets its checkpoint; `own_only`: one of this run. From the loop's thread: awaits no disk."""
        self.records.set_resume_way(resume_by, own_only=own_only)

    def select(  # noqa: PLR0913 -- the facts of the run
        self,
        t: float,
        attempt: int,
        avoid: Collection[str] = (),
        *,
        suspect: bool = False,
        permission: RepairPermission | None = None,
        reached: int | None = None,
        begun_from: Collection[str] = (),
        in_the_way: str = "",
        missed: str = "",
    ) -> CheckpointSelected:
        """Return the checkpoint that the next attempt begins with; see CheckpointSelector."""
        permission = permission or RepairPermission()
        self.records.absorb_logs()
        self._newest_save.read()
        self._newest_save.look(is_at_rest=True)
        return self._selector.select(
            t,
            attempt,
            avoid,
            suspect=suspect,
            permission=permission,
            reached=reached,
            begun_from=begun_from,
            in_the_way=in_the_way,
            missed=missed,
        )

    def path_faults(self, attempt: int, facts: Iterable[Evidence]) -> Iterable[Evidence]:
        """Return what lies at the paths that exceptions name, where that explains them."""
        self.records.absorb_logs()
        return tuple(self._path_faults.evidence(attempt, facts))

    def keep_unused(self, attempt: int) -> None:
        """Hold copies of the checkpoints that an attempt did not visibly load, and report them."""
        self._unused.keep(attempt)

    def accuse(self, reason: str) -> tuple[str, ...]:
        """Record for later runs what this run stepped back from. Return for each what a person should know."""
        accused = self.records.order.accuse(reason)
        return tuple(f"checkpoint out of use from now on: {accusations.text(row, self._job)}" for row in accused)

    def saved_since(self, since_t: float, limit_s: float) -> CheckpointRef | None:
        """Return the newest whole checkpoint that was written since then (wall time), None where none is found in time."""
        return self._selector.saved_since(since_t, limit_s)

    def has_good(self) -> bool:
        """Return whether any checkpoint on this disk is proven whole."""
        return self._selector.has_good()

    def note_before(self) -> None:
        """Record what lies at the declared patterns before any rank starts."""
        self.records.baseline.take(self.records.listed(self.records.locations.declared).candidates)

    def restored(self, path: str, began: int, manifest: str = "", mirror: str = "") -> None:
        """Record a checkpoint that was restored from a mirror (its URL).

        `began`: when the run began that saved it; this run is later, whatever our clock says. `manifest`: the mirror's, where every byte
        was compared with it; the records of this job are written here again.
        """
        records = self.records
        records.begin_run()
        records.order.restored(began)
        identity = identity_of(path)
        if identity is not None:
            records.baseline.add(path, identity)
        if identity is not None and manifest:
            known = decode(manifest.encode("ascii"))
            if known.about.job == self._job.name:
                part = self._parts.manifests.get(path)  # its run and attempt as this node counts them
                about = part.about if part is not None and part.save == known.save else known.about
                here = replace(known, path=path, identity=identity, about=about)
                records.manifests.put(here)
                records.mirrored.add(mirror, here, keys.key_of(known))
        if records.discovery is not None:
            records.discovery.add(path)
        records.restored = path

    def take_over(self, rows: Iterable[MirrorManifest]) -> None:
        """Record again what still lies here as a mirror's manifests say, where the catalogue was lost; before anything else is recorded."""
        records = self.records
        records.is_catalogue_new = False
        for row in rows:
            manifest = decode(row.manifest.encode("ascii"))
            identity = identity_of(manifest.path)
            if identity is not None and is_unchanged(identity, manifest.identity) and manifest.about.job == self._job.name:
                here = replace(manifest, identity=identity)
                records.manifests.put(here)
                records.mirrored.add(row.mirror, here, row.key)

    def loaded(self, attempt: int) -> tuple[LoadedCheckpoint, ...]:
        """Return what the ranks of an attempt loaded before their first step, each with who wrote it."""
        self.records.begin_run()
        self.records.absorb_logs()
        return self._owners.of_loads(self._job.attempt_dir(attempt))

    def restore_saves_with(self, restore: Callable[[str], RestoreAnswer]) -> None:
        """Set what restores a save of several nodes, by its name, where all nodes agree on it. Called in a worker thread."""

        def bring(save: str) -> SaveRestored:
            answer = restore(save)
            if answer.kind != "restored":
                return SaveRestored("", answer.message, answer.kind == PARTS_MISSING)
            self.restored(answer.path, answer.began, answer.manifest, answer.mirror)
            return SaveRestored(answer.path)

        self.node_offer.restore_save = bring

    def numbers(self) -> str:
        """Return in one line whether what this run saved last holds numbers that turned to NaN or Inf; "" where it does not.

        Nothing is read.
        """
        return self.recorder.numbers()

    def last_recorded(self) -> CheckpointRef | None:
        """Return the newest checkpoint of this run that is recorded as verified. Nothing is read."""
        last = self.recorder.last_of_run()
        return None if last is None else ref_of(last.path, last.step, check.LEVEL, last.epoch, last.content_step)

    def saved(self) -> tuple[str, ...]:
        """Return the patterns to which this job was seen to save what may be checkpoints."""
        return () if self.records.discovery is None else self.records.discovery.patterns(candidates=True)

    def mirror_feed(self, uploads: CheckpointSender, has_rank_0: Callable[[], bool | None]) -> MirrorFeed:
        """Make what sends each checkpoint once. `has_rank_0`: whether global rank 0 is on this node; None while no rank is known."""
        self.node_offer.feed = MirrorFeed(self.records, self.recorder, self.shared, uploads, has_rank_0)
        return self.node_offer.feed

    def watcher(
        self,
        feed: MirrorFeed | None = None,
        has_rank_0: Callable[[], bool | None] = lambda: True,
        reader: CheckpointReader | None = None,
    ) -> CheckpointWatcher | None:
        """Make the watcher; None where no checkpoint is declared or may be discovered.

        `feed`: None without a mirror. `reader`: the process that reads checkpoints; None: this one does.
        """
        if not self._job.settings.checkpoints.paths and self.records.discovery is None:
            return None
        self.records.copies.sweep()
        return CheckpointWatch(
            self.records,
            self.recorder,
            self.shared,
            self.retention,
            self._parts,
            newest_save=self._newest_save,
            feed=feed,
            has_rank_0=has_rank_0,
            reader=reader or OnePass(self._job.name),
            report=self._report,
        ).watcher
