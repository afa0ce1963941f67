"""Whole checkpoints of a job that an attempt did not visibly load: where they are, and a copy of the newest before it is overwritten.

One copy of each location is held for the run: the one that is farthest. If steps and epochs do not tell, both are held. The usual
retention does not remove them (checkpointing/retention/copies.py). A later run holds its own. If it begins from scratch after a run
that did not end well, it also holds what that run held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from checkpointing import ordering
from checkpointing.discover import find
from checkpointing.io.tree import ReadOptions
from checkpointing.model import CheckpointingError, Verdict
from checkpointing.reader.messages import CheckpointRead, ReadCheckpoint
from checkpointing.reader.one_pass import read_once
from supervisor.checkpoints.recording.reports import CheckpointAlert, CheckpointCopied, CheckpointTrouble
from supervisor.core.checkpoint_model import UnusedCheckpoints
from supervisor.core.model import RESUME
from supervisor.observe.ranks.path_patterns import pattern_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpointing.manifest.documents import Manifest
    from checkpointing.model import Candidate, Verification
    from checkpointing.retention.copies import Copy
    from supervisor.checkpoints.recording.recorder import CheckpointRecorder
    from supervisor.checkpoints.recording.reports import CheckpointReport
    from supervisor.checkpoints.records import CheckpointRecords
    from supervisor.checkpoints.retention import Retention

#: A copy that shares no blocks with its original is made up to this size.
MOST_COPIED_BYTES: Final = 10 << 30
#: How many checkpoints of one location are read, the newest first, to find a whole one.
MOST_READ: Final = 4


def unused_checkpoints(records: CheckpointRecords) -> tuple[UnusedCheckpoints, ...]:
    """Return where whole checkpoints of this job lie that nobody loads. No file is read: only verified ones are returned."""
    if records.discovery is None or records.job.settings.checkpoints.paths:
        return ()
    by_pattern: dict[str, list[tuple[Candidate, Verification]]] = {}
    for candidate in _saved(records):
        seen = records.cache.get(candidate.path, candidate.identity)
        if seen is not None and seen.verdict is Verdict.VERIFIED:
            by_pattern.setdefault(pattern_of(candidate.path), []).append((candidate, seen))
    order = records.order.order()
    newest = {pattern: min(rows, key=lambda row: order.of_candidate(*row))[1] for pattern, rows in by_pattern.items()}
    option = dict(records.job.knobs.likely).get(RESUME, "")
    return tuple(
        UnusedCheckpoints(pattern, len(by_pattern[pattern]), first.path, first.step, first.epoch, option)
        for pattern, first in sorted(newest.items())
    )


class UnusedCopies:
    """Holds copies of the checkpoints that an attempt did not visibly load. In a worker thread, while its ranks train."""

    def __init__(
        self, records: CheckpointRecords, retention: Retention, recorder: CheckpointRecorder, report: Callable[[CheckpointReport], None]
    ) -> None:
        self._records, self._retention, self._recorder, self._report = records, retention, recorder, report

    def keep(self, attempt: int) -> None:
        """Hold a copy of the newest whole checkpoint of each location that is older than `attempt`, and report it."""
        earlier: dict[str, list[Candidate]] = {}
        try:
            for candidate in _saved(self._records):
                if not self._is_of(candidate, attempt):
                    earlier.setdefault(pattern_of(candidate.path), []).append(candidate)
            copies = self._earlier_copies(attempt)
            for pattern in sorted({*earlier, *copies}):
                self._keep(pattern, self._newest_whole(earlier.get(pattern, [])), copies.get(pattern, []))
        except (CheckpointingError, OSError) as error:
            self._report(
                CheckpointAlert(CheckpointTrouble.NO_COPY, f"earlier checkpoints may be overwritten, and could not be read: {error}")
            )

    def _keep(self, pattern: str, whole: Manifest | None, copies: list[Copy]) -> None:
        """Hold a copy of `whole`, or the newest of `copies` if there is no whole checkpoint, unless a held one is farther."""
        order = self._records.order.order()
        by_age = sorted(copies, key=lambda copy: order.of_manifest(copy.manifest, ordering.COPY, copy.place))
        copy = None if whole is not None else next(iter(by_age), None)
        manifest = whole if copy is None else copy.manifest
        if manifest is None:
            return
        held = [copy for copy in copies if copy.held_by]
        farther = [copy for copy in held if ordering.is_farther(copy.manifest, manifest)]
        if farther:
            for other in farther:
                self._hold_for_this_run(other)
            return
        problem = ""
        if copy is None:
            copy, problem = self._retention.copy(manifest, MOST_COPIED_BYTES)
        if copy is not None:
            problem = self._records.copies.hold(copy)
        if copy is None or problem:
            text = f"{manifest.path} may be overwritten: the attempt is not known to have loaded it, and no copy of it is kept: {problem}"
            self._report(CheckpointAlert(CheckpointTrouble.NO_COPY, text))
            return
        for other in held:
            if other.directory == copy.directory:
                continue
            if ordering.is_farther(other.manifest, manifest) is False:
                self._records.copies.release(other)
            else:  # neither is known to be farther
                self._hold_for_this_run(other)
        option = dict(self._records.job.knobs.likely).get(RESUME, "")
        unused = UnusedCheckpoints(pattern, 1, manifest.path, manifest.step, manifest.epoch, option)
        self._report(CheckpointCopied(unused, copy.place))

    def _hold_for_this_run(self, copy: Copy) -> None:
        """Hold a copy that an earlier run may have held."""
        problem = "" if self._records.copies.is_held(copy) else self._records.copies.hold(copy)
        if problem:
            self._report(CheckpointAlert(CheckpointTrouble.NO_COPY, f"the copy {copy.place} may be removed: {problem}"))

    def _newest_whole(self, candidates: list[Candidate]) -> Manifest | None:
        """Return the record of the newest one that is whole and whose weights hold numbers."""
        records = self._records
        for candidate in records.order.order().newest_candidates(candidates)[:MOST_READ]:
            known = records.cache.get(candidate.path, candidate.identity)
            if known is None or (known.verdict is Verdict.VERIFIED and not self._recorder.is_recorded(candidate)):
                order = ReadCheckpoint(0, candidate.path, records.provenance.trusts(candidate.path))
                answer = read_once(order, records.job.name, ReadOptions(drop_cache=True))
            else:
                answer = CheckpointRead(0, known)
            is_whole = answer.verification is not None and answer.verification.verdict is Verdict.VERIFIED
            manifest = self._recorder.record(answer) if is_whole else None
            if manifest is not None and not manifest.has_lost_weights:
                return manifest
        return None

    def _is_of(self, candidate: Candidate, attempt: int) -> bool:
        """Return whether an attempt wrote a checkpoint. A logged save is sure; without one the time shows it, which is coarse."""
        origin = self._records.provenance.of(candidate.path, candidate.identity, candidate.written_ns)
        logged = origin.logged_attempt
        return (origin.attempt_of(self._records.job.run_id) if logged is None else logged) == attempt

    def _earlier_copies(self, attempt: int) -> dict[str, list[Copy]]:
        """Return our copies of this run's earlier attempts, by location: what they were made of may be overwritten already.

        The copies that are held are among them; in a first attempt also those that an earlier run held, which did not end well.
        """
        by_pattern: dict[str, list[Copy]] = {}
        for copy in self._records.copies.all():
            about = copy.manifest.about
            is_earlier = about.run == self._records.job.run_id and about.attempt != attempt
            is_held = self._records.copies.is_held(copy) or (attempt == 1 and bool(copy.held_by))
            if (is_earlier or is_held) and not copy.manifest.has_lost_weights:
                by_pattern.setdefault(pattern_of(copy.manifest.path), []).append(copy)
        return by_pattern


def _saved(records: CheckpointRecords) -> list[Candidate]:
    """List what lies at the locations to which this job was seen to save."""
    discovery = records.discovery
    if discovery is None:
        return []
    patterns = [place.pattern for place in discovery.locations() if place.saved and not place.data]
    listed = find(patterns, str(records.job.cwd)).candidates if patterns else ()
    return [candidate for candidate in listed if discovery.is_saved(candidate.path)]
