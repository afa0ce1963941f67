"""The facts of a job's checkpoints on this node: the one holder of each record, and the records at the start of a run and of an attempt."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.io.read_watch import ReadWatch
from checkpointing.io.tree import Tree
from checkpointing.manifest.documents import PART, Manifests
from checkpointing.rejections import Rejections
from checkpointing.retention.aside import AsideRecord
from checkpointing.retention.copies import Copies
from checkpointing.verification import Cache
from supervisor.checkpoints import accusations
from supervisor.checkpoints.discovery.from_logs import Discovery
from supervisor.checkpoints.discovery.locations import CheckpointLocations
from supervisor.checkpoints.mirror.mirrored import MirroredCheckpoints
from supervisor.checkpoints.origin.baseline import Baseline
from supervisor.checkpoints.origin.order import CheckpointOrder
from supervisor.checkpoints.origin.provenance import Provenance
from supervisor.checkpoints.recording.meeting import MeetingRecord
from supervisor.core.attempt.programs import DECLARED
from supervisor.core.model import ResumeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from checkpointing.discover import Listing
    from checkpointing.model import Candidate
    from supervisor.job.job import Job

DIRECTORY: Final = "checkpoints"

T = TypeVar("T")


class CheckpointRecords:
    """The records of one job on this node, below `checkpoints/` in its state directory. Only one supervisor writes them.

    `begin_attempt` waits for no disk. All else reads and writes files: call it in worker threads.
    """

    def __init__(self, job: Job, *, several_nodes: bool, reads: ReadWatch | None = None) -> None:
        """Read the records of earlier runs. `reads` follows the reads before an attempt."""
        settings = job.settings
        self.job = job
        self.several_nodes = several_nodes
        self.directory = job.state / DIRECTORY
        self.reads = ReadWatch() if reads is None else reads
        self.cache = Cache()  # of verdicts: what the watcher has read, a selection need not read again
        discovers = settings.instrument.enabled
        self.catalogue = CheckpointCatalogue(self.directory, is_writer=True)
        self.is_catalogue_new = self.catalogue.is_empty
        self.discovery = Discovery(self.catalogue, job.run_id) if discovers else None
        self.locations = CheckpointLocations(job, self.discovery)
        self.manifests = Manifests(self.catalogue)
        self.order = CheckpointOrder(self.catalogue, self.manifests, self.discovery, job.run_id)
        self.baseline = Baseline(self.catalogue, settings.checkpoints.paths)
        self.moves = AsideRecord(self.catalogue)
        self.provenance = Provenance(
            job,
            self.locations,
            self.discovery,
            self.order,
            manifests=self.manifests,
            baseline=self.baseline,
            several_nodes=several_nodes,
        )
        self.copies = Copies(
            self.catalogue,
            int(settings.checkpoints.copies_gib * 2**30),
            order=self.order.order,
            is_abandoned=self.order.is_abandoned,
            run_id=job.run_id,
        )
        self.restored = ""  # the path to which a mirror restored a checkpoint for this run
        self.meetings = MeetingRecord(self.catalogue, job.run_id)
        self.mirrored = MirroredCheckpoints(self.catalogue, (self.manifests, Manifests(self.catalogue, PART)))
        self.rejections = Rejections(self.catalogue)  # of the checkpoints that must not be resumed from
        self.set_resume_way(DECLARED)
        self._lock = threading.Lock()
        self._has_begun = False
        self._notes: tuple[str, ...] | None = ()  # None: they were taken
        self._attempt = 0
        self.ranks_began_ns = time.time_ns()  # of the attempt, wall time
        self.avoided: frozenset[str] = frozenset()  # whole ones that no attempt of this run resumes from any more

    def set_resume_way(self, resume_by: str, *, own_only: bool = False) -> None:
        """Set by whose knob the next attempt gets its checkpoint, as the core orders it. Before the first order the declared one holds.

        `own_only`: one of this run. It awaits no disk.
        """
        self.own_only = own_only
        settings, way = self.job.settings, self.job.knobs.resume_way(resume_by)
        finds = way is not None and way.knob.counts in {ResumeKind.SWITCH, ResumeKind.ITSELF}
        self.script_chooses = finds or settings.resumes_itself or not settings.checkpoints.paths
        if self.discovery is not None and not settings.checkpoints.paths:
            self.discovery.set_resume_way(way)

    @property
    def has_saved(self) -> bool:
        """Whether ranks of this run were seen to save on this node; True where no save is logged."""
        return self.discovery is None or bool(self.discovery.saved())

    def listed(self, work: Callable[[], T]) -> T:
        """Return what `work` lists or stats at the places of the checkpoints. Raises DiskSilent where their disk does not answer."""
        return self.reads.call(", ".join(self.locations.roots()) or str(self.job.cwd), work)

    def resumable(self) -> Listing:
        """List the checkpoints from which the next attempt may resume: all, or those of this run.

        By its time alone, a file that another job saved to the same directory is treated as this run's. What ranks of this run were seen to
        save goes before it.
        """
        listing = self.locations.listing()
        if not self.own_only:
            return listing
        own = [candidate for candidate in listing.candidates if candidate.path == self.restored or self._is_of_run(candidate)]
        logged = (
            []
            if self.discovery is None or self.several_nodes
            else [candidate for candidate in own if self.discovery.writes(candidate.path)]
        )
        return replace(listing, candidates=tuple(logged or own))

    def _is_of_run(self, candidate: Candidate) -> bool:
        origin = self.provenance.of(candidate.path, candidate.identity, candidate.written_ns)
        return origin.logged_attempt is not None or origin.attempt_of(self.job.run_id) > 0

    @property
    def problems(self) -> tuple[str, ...]:
        """The last failed reads and records, each in one line."""
        return tuple(problem for problem in (self.catalogue.problem, self.copies.problem) if problem)

    def begin_run(self) -> None:
        """Record that the run began, once, before anything is chosen or recorded. Take in what a killed supervisor's ranks wrote last."""
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
            self.baseline.take(self.locations.declared().candidates)
            self._notes = (*self.order.begin_run(self.copies), *self.locations.without_candidates())
            left = sorted(self.job.scratch.glob("attempt-[0-9]*"))
            if self.discovery is not None and left:
                self.discovery.absorb(left[-1], int(left[-1].name.rpartition("-")[2]), again=True)

    def take_notes(self, listed: Iterable[Candidate], chosen: str) -> tuple[str, ...]:
        """Return what a person should know of the run's beginning, once: which newer ones than the chosen one ("": none) are out of use."""
        with self._lock:
            notes, self._notes = self._notes, None
        if notes is None:
            return ()
        return (*notes, *accusations.of_earlier_runs(self.order, listed, chosen, self.job))

    def begin_attempt(self, attempt: int) -> None:
        """Note whose logs of saves and loads are read from now on. Waits for no disk."""
        self._attempt = attempt
        self.ranks_began_ns = time.time_ns()
        self.order.attempt_begins(attempt)

    def is_older(self, path: str) -> bool:
        """Return whether nothing at a path was written since the ranks of the attempt were started."""
        try:
            newest_ns = os.lstat(path).st_mtime_ns
            newest_ns = max(newest_ns, Tree(path).newest_mtime_ns) if os.path.isdir(path) else newest_ns  # noqa: PTH112 (strings throughout)
        except OSError:
            return False
        return newest_ns < self.ranks_began_ns

    @property
    def attempt(self) -> int:
        """The attempt whose ranks run, or ran last; 0 before the first."""
        return self._attempt

    def absorb(self) -> bool:
        """Write the order of the attempts to its file, and read what the ranks logged. Return whether anything was new of the latter.

        Soon after an attempt began: a supervisor that is killed then would count what other nodes saved in it to no attempt.
        """
        self.order.write()
        return self.absorb_logs()

    def absorb_logs(self) -> bool:
        """Read what the attempt's ranks logged since the last time. Return whether anything was new."""
        attempt = self._attempt
        return self.discovery is not None and attempt > 0 and self.discovery.absorb(self.job.attempt_dir(attempt), attempt)
