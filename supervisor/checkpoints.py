"""A job's checkpoints, from the supervisor's side: where they are, which one an attempt begins with, and what was recorded of them.

In: the declared patterns, the places that were learned (learned.py), the state directory. Out: listings for the watcher, the answer to
SelectCheckpoint, manifests of what the watcher proved. Nothing in here fails a job: what goes wrong is in the answer, or is told by
`problems`. Everything is called in worker threads: files are read. Owns the cache of verdicts, which watcher and selection share, the
fences and the manifests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from checkpointing import proof
from checkpointing.catalog import Listing, find
from checkpointing.fence import Fences
from checkpointing.manifest import About, Manifests
from checkpointing.model import CheckpointingError
from checkpointing.select import LIMIT_S, newest
from checkpointing.source import Interrupted
from checkpointing.verify import Cache
from supervisor.core.inbox import CheckpointSelected
from supervisor.learned import Learned
from supervisor.observe.checkpoints import CheckpointWatcher, to_event, to_ref
from supervisor.places import is_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from checkpointing.manifest import Manifest
    from checkpointing.model import Verification
    from checkpointing.tree import Reading
    from supervisor.core.model import CheckpointRef
    from supervisor.job import Job

DIRECTORY: Final = "checkpoints"


class JobCheckpoints:
    """The checkpoints of one job on this node."""

    def __init__(self, job: Job) -> None:
        """Read what earlier runs recorded."""
        self._job = job
        self._directory = job.state / DIRECTORY
        self._cache = Cache()
        self._fences: Fences | None = None
        self._manifests = Manifests(str(self._directory))
        self._attempt = 0
        settings = job.settings
        learns = settings.checkpoints.learn and settings.instrument.enabled
        self.learned = Learned(self._directory, job.run_id) if learns else None

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read or recorded, last, each in one line."""
        learned = self.learned.problem if self.learned is not None else None
        fences = self._fences.problem if self._fences is not None else None
        return tuple(problem for problem in (fences, learned, self._manifests.problem) if problem)

    def began(self, attempt: int) -> None:
        """Note which attempt's ranks are to be learned from. From the loop's thread."""
        self._attempt = attempt

    def listing(self, *, candidates: bool = False) -> Listing:
        """List the checkpoints that are declared or learned, and with `candidates` what may turn out to be one."""
        cwd = str(self._job.cwd)
        declared = find(self._job.settings.checkpoints.paths, cwd)
        if self.learned is None:
            return declared
        patterns = self.learned.patterns(candidates=candidates)
        further = find(patterns, cwd) if patterns else Listing(())
        known = {(candidate.identity.dev, candidate.identity.ino) for candidate in declared.candidates}
        more = [
            candidate
            for candidate in further.candidates
            if (candidate.identity.dev, candidate.identity.ino) not in known and any(is_of(pattern, candidate.path) for pattern in patterns)
        ]
        # a learned place that cannot be looked at is the script's own trouble
        return Listing(tuple(sorted((*declared.candidates, *more), key=lambda candidate: candidate.path)), declared.problems)

    def is_checkpoint(self, path: str) -> bool:
        """Return whether something that was listed with candidates is a checkpoint: learned to be one, or declared."""
        if self.learned is None or self.learned.is_checkpoint(path):
            return True
        return any(path == one.path for one in find(self._job.settings.checkpoints.paths, str(self._job.cwd)).candidates)

    def absorb(self) -> None:
        """Learn from what the ranks wrote since the last time."""
        if self.learned is not None and self._attempt:
            self.learned.absorb(self._job.attempt_dir(self._attempt), self._attempt)

    def select(self, t: float, attempt: int, avoid: Collection[str] = (), *, suspect: bool = False) -> CheckpointSelected:
        """Find and verify the newest checkpoint that is not among `avoid`, whatever is written there now. No rank is alive."""
        checkpoints = self._job.settings.checkpoints
        declared = bool(checkpoints.paths)
        try:
            self._fences = self._fences or Fences(self._directory)
            self.absorb()
            selection = newest(
                self.listing(),
                self._fences,
                self._cache,
                manifests=self._manifests,
                suspect=suspect,
                budget_s=checkpoints.verify_budget_s,
                limit_s=LIMIT_S if declared else checkpoints.verify_budget_s,  # what the script takes care of itself does not wait for us
                avoid=avoid,
            )
            return to_event(selection, t, attempt)
        except (CheckpointingError, OSError) as error:
            return CheckpointSelected(t, attempt, None, found=int(declared), refused=((str(self._directory), str(error)),))

    def watcher(self, on_verified: Callable[[CheckpointRef], None]) -> CheckpointWatcher | None:
        """Make the watcher, where any checkpoint is declared or may be learned."""
        checkpoints = self._job.settings.checkpoints
        if not checkpoints.paths and self.learned is None:
            return None

        def look() -> Listing:
            self.absorb()
            return self.listing(candidates=True)

        def verified(found: Verification, reading: Reading, news: bool) -> None:  # noqa: FBT001 (the watcher's)
            manifest = self._record(found, reading)
            if news and self.is_checkpoint(found.path):
                on_verified(to_ref(found if manifest is None else replace(found, level=proof.LEVEL)))

        return CheckpointWatcher(look, verified, self._cache, interval_s=checkpoints.scan_interval_s)

    def _record(self, found: Verification, reading: Reading) -> Manifest | None:
        """Take down what was proven, byte by byte, so that a later change of it is seen. None where it changed meanwhile."""
        known = self._manifests.get(found.path)
        if known is not None and known.identity == found.identity:
            return known
        try:
            manifest = proof.build(found, About(self._job.name, self._job.run_id), reading=reading)
        except (proof.Changed, Interrupted, OSError):
            return None  # it is looked at anew when it stands still
        return manifest if self._manifests.put(manifest) else None
