"""Chooses the checkpoint that an attempt begins with, on one node."""

from __future__ import annotations

import dataclasses
import shlex
import time
from typing import TYPE_CHECKING, Final

from checkpointing import markers
from checkpointing.candidates import SelectionOptions
from checkpointing.discover import Listing
from checkpointing.io.read_watch import DiskSilent
from checkpointing.io.reader import Interrupted
from checkpointing.io.tree import ReadOptions
from checkpointing.model import CheckpointingError, Verdict
from checkpointing.retention.aside import advised_move
from checkpointing.select import newest
from checkpointing.verification import verify
from supervisor.checkpoints.origin.owners import FILE_CLOCKS_S, CheckpointOwners, step_of
from supervisor.checkpoints.recording.watcher import to_event, to_ref
from supervisor.checkpoints.unused import unused_checkpoints
from supervisor.core.checkpoint_model import CheckpointOwner, WithoutTracker
from supervisor.core.events import CheckpointSelected
from supervisor.core.values import replace
from supervisor.observe.ranks.path_patterns import checkpoint_path
from supervisor.observe.ranks.progress_sampler import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from checkpointing.candidates import Spare
    from checkpointing.rejections import Rejections
    from checkpointing.select import Selection
    from supervisor.checkpoints.records import CheckpointRecords
    from supervisor.checkpoints.repair import CheckpointRepair, RepairPermission
    from supervisor.checkpoints.retention import Retention
    from supervisor.core.model import CheckpointRef

NOTHING_LISTED: Final = Listing(())


class CheckpointSelector:
    """Chooses among the checkpoints of one job. Its methods read files: call them in worker threads."""

    def __init__(self, records: CheckpointRecords, retention: Retention, repair: CheckpointRepair | None) -> None:
        """`repair`: None where no rank's save is logged, so that nothing may be moved."""
        self._records, self._retention, self._repair = records, retention, repair
        self._job = records.job
        self._owners = CheckpointOwners(records)

    def select(  # noqa: PLR0913 -- the facts of the run
        self,
        t: float,
        attempt: int,
        avoid: Collection[str],
        *,
        suspect: bool,
        permission: RepairPermission,
        reached: int | None = None,
        begun_from: Collection[str] = (),
        in_the_way: str = "",
        missed: str = "",
    ) -> CheckpointSelected:
        """Return the newest whole checkpoint that is not among `avoid`. No rank is alive on this node. Raises Interrupted.

        `in_the_way`: the path of what the last attempt's save met there; `missed`: the number of the change that set aside what its script
        misses.

        `reached`: the run's own greatest step, None before it has one. Beyond that one of another training is passed over, unless it is in
        `begun_from`: the run began with it.

        If the script resumes by itself, the torn checkpoints that it would take are repaired while `permission` is valid: an attempt may
        begin before this ends.
        """
        records = self._records
        repaired: tuple[tuple[str, str], ...] = ()
        silent: dict[str, str] = {}
        try:
            records.listed(records.begin_run)
            rejections = records.rejections
            records.absorb()
            records.avoided = frozenset(avoid)
            if permission.is_valid:
                records.order.step_back(avoid, records.copies)
            # those of earlier runs too: the script may take a torn one
            listing = self._listing(records.locations.listing, silent)
            selection = self._newest(rejections, avoid, listing, suspect=suspect)
            if not records.reads.is_wanted():
                raise Interrupted
            silent |= dict(selection.silent)
            # nothing is moved on a disk that hangs
            if self._repair is not None and permission.is_valid and not silent:
                repaired = (*(self._repair.bring_back(int(missed), permission) if missed else ()),)
                repaired += self._repair.clear_way(in_the_way, attempt, permission) if in_the_way else ()
                if records.script_chooses:
                    torn = [path for path, _ in selection.torn if path != in_the_way]
                    repaired += self._repair.repair(torn, attempt, permission)
            if repaired or records.own_only:
                left = [row for row in selection.torn if row[0] not in {path for path, _ in repaired}]
                selection = self._newest(rejections, avoid, self._listing(records.resumable, silent), suspect=suspect)
                selection = dataclasses.replace(selection, torn=tuple(dict.fromkeys((*selection.torn, *left))))
            if reached is not None and not records.script_chooses:
                selection = self._of_this_training(selection, rejections, avoid, reached, begun_from, suspect=suspect)
            is_foreign = selection.chosen is not None and self._owners.is_foreign(selection.chosen.path)
            if permission.is_valid:
                self._retention.use(None if selection.chosen is None else selection.chosen.path)
            chosen = "" if selection.chosen is None else selection.chosen.path
            notes = (*records.take_notes(listing.candidates, chosen), *selection.notes)
            silent |= dict(selection.silent)
            unused = unused_checkpoints(records) if selection.chosen is None and not silent else ()
            stuck = self._stuck(selection, attempt, {path for path, _ in repaired})
            event = replace(to_event(selection, t, attempt), repaired=repaired, notes=notes, unused=unused)
            event = replace(event, torn_in_use=stuck, advised_move=advised_move(stuck) if stuck else "")
            event = replace(event, silent=tuple(silent.items()), is_foreign=is_foreign, has_saved=records.has_saved)
            event = replace(event, without_tracker=self._without_tracker(event))
            return replace(event, kept_copies=self._kept_copies(event)) if records.script_chooses else event
        except DiskSilent as error:
            rows = ((", ".join(records.locations.roots()), str(error)),)
            return CheckpointSelected(t, attempt, None, n_found=1, refused=rows, repaired=repaired, silent=rows)
        except (CheckpointingError, OSError) as error:
            return CheckpointSelected(t, attempt, None, n_found=1, refused=((str(records.directory), str(error)),), repaired=repaired)

    def _listing(self, work: Callable[[], Listing], silent: dict[str, str]) -> Listing:
        """Return a listing of candidates; where their disk does not answer, none, and the reason in `silent`: our copies may do."""
        try:
            return self._records.listed(work)
        except DiskSilent as error:
            place = ", ".join(self._records.locations.roots())
            silent[place] = str(error)
            return Listing((), ((place, str(error)),))

    def _of_this_training(  # noqa: PLR0913 -- as `select`
        self,
        selection: Selection,
        rejections: Rejections,
        avoid: Collection[str],
        reached: int,
        begun_from: Collection[str],
        *,
        suspect: bool,
    ) -> Selection:
        """Return the selection without the checkpoints of another training that lie beyond this one."""
        foreign: dict[str, str] = {}
        while (chosen := selection.chosen) is not None and chosen.path not in begun_from:
            owner, why = self._owners.owner_of(chosen.path)
            step = step_of(chosen.path) if owner is CheckpointOwner.FOREIGN else None
            if step is None or step <= reached:
                break
            foreign[chosen.path] = f"it is of another training: {why}, and its step {step} lies beyond step {reached} of this run"
            selection = self._newest(rejections, (*avoid, *foreign), self._records.listed(self._records.resumable), suspect=suspect)
        rejected = tuple((path, foreign.get(path, reason)) for path, reason in selection.rejected)
        notes = tuple(f"checkpoint not resumed from: {path}: {why}" for path, why in foreign.items())
        return dataclasses.replace(selection, rejected=rejected, notes=(*notes, *selection.notes)) if foreign else selection

    def select_from(
        self, listing: Listing, copies: Sequence[Spare], avoid: Collection[str] = (), *, suspect: bool, rejections: Rejections | None
    ) -> Selection:
        """Return the newest whole one of some checkpoints and copies. `rejections`: None where nothing is to be rejected for good."""
        return newest(listing, self.options(copies, avoid, suspect=suspect, rejections=rejections))

    def options(self, copies: Sequence[Spare], avoid: Collection[str], *, suspect: bool, rejections: Rejections | None) -> SelectionOptions:
        """Return how this node chooses: with what its records hold now."""
        records = self._records
        return SelectionOptions(
            rejections=rejections,
            cache=records.cache,
            manifests=records.manifests,
            spares=copies,
            suspect=suspect,
            watch=records.reads,
            avoid=avoid,
            prefer_finite=self.prefers_finite,
            order=records.order.order(),
            own=records.provenance.trusts,
        )

    def copies(self) -> tuple[Spare, ...]:
        """Return our copies that may be handed over. A script that resumes by itself does not find them."""
        return () if self._records.script_chooses else self._records.copies.spares()

    @property
    def prefers_finite(self) -> bool:
        """Whether an older checkpoint is handed out where the newest holds weights that turned to NaN."""
        return not self._records.script_chooses

    def has_good(self) -> bool:
        """Return whether any checkpoint on this disk is proven whole, False where the disk does not answer.

        Nothing is rejected for good: ranks of other nodes may be writing.
        """
        records = self._records
        try:
            records.listed(records.begin_run)
            chosen = self._newest(None, (), records.listed(records.resumable), suspect=False).chosen
            return chosen is not None and records.rejections.get(chosen.path, chosen.identity) is None
        except DiskSilent:
            return False  # the mirror may have one; the selection reports the disk
        except (CheckpointingError, OSError):
            return True  # the selection meets it as well, and reports it

    def saved_since(self, since_t: float, limit_s: float) -> CheckpointRef | None:
        """Return the newest whole checkpoint that was written since then (wall time), None where none is found in time. Nothing is moved.

        No rank is alive on this node.
        """
        until, since_ns = time.monotonic() + limit_s, int((since_t - FILE_CLOCKS_S) * 1e9)
        try:
            self._records.absorb()
            new = [candidate for candidate in self._records.locations.listing(candidates=True).candidates if candidate.mtime_ns >= since_ns]
        except (CheckpointingError, OSError):
            return None  # the next start looks again, and reports it
        trusts = self._records.provenance.trusts
        for candidate in self._records.order.order().newest_candidates(new):
            verification = verify(
                candidate.path, reading=ReadOptions(interrupted=lambda: time.monotonic() > until), own=trusts(candidate.path)
            )
            if verification.verdict is Verdict.VERIFIED:
                return to_ref(verification)
        return None

    def _newest(self, rejections: Rejections | None, avoid: Collection[str], listing: Listing, *, suspect: bool) -> Selection:
        return self.select_from(listing, self.copies(), avoid, suspect=suspect, rejections=rejections)

    def _kept_copies(self, event: CheckpointSelected) -> tuple[tuple[str, str], ...]:
        """Return the newest whole copy of each torn checkpoint that stays, as (path, copy).

        Where only this run's checkpoints may be passed on, so it is with the copies. A hard link is torn with its original.
        """
        run, done = self._job.run_id if self._records.own_only else "", {path for path, _ in event.repaired}
        torn = [path for path, _ in event.torn if path not in done]
        copies = [copy for copy in self._records.copies.spares() if run in {"", copy.manifest.about.run}] if torn else []
        newest = {path: self._whole([copy for copy in copies if copy.original_path == path]) for path in torn}
        return tuple((path, copy) for path, copy in newest.items() if copy)

    def _whole(self, copies: Sequence[Spare]) -> str:
        chosen = self.select_from(NOTHING_LISTED, copies, suspect=True, rejections=None).chosen if copies else None
        return "" if chosen is None else chosen.path

    def _without_tracker(self, event: CheckpointSelected) -> WithoutTracker | None:
        """Return the newest whole checkpoint whose framework does not find it, where the script finds its checkpoint by itself."""
        records = self._records
        if not records.script_chooses or event.silent:
            return None
        path = event.chosen.path if event.chosen is not None else ""
        if not path:  # no rank is known to load from there
            listed = records.listed(lambda: records.locations.listing(candidates=True)).candidates
            lost = tuple(candidate for candidate in listed if markers.missing_tracker(candidate.path) is not None)
            chosen = self.select_from(Listing(lost), (), suspect=False, rejections=None).chosen if lost else None
            path = "" if chosen is None else chosen.path
        missing = markers.missing_tracker(path)
        if missing is None:
            return None
        tracker, content = missing
        return WithoutTracker(path, tracker, f"printf %s {shlex.quote(content)} > {shlex.quote(tracker)}")

    def _stuck(self, selection: Selection, attempt: int, repaired: Collection[str]) -> str:
        """Return the torn checkpoint that a rank of the last attempt tried in vain to load, and that is still there."""
        torn = {path for path, _ in selection.torn if path not in repaired}
        tried = loads(self._job.attempt_dir(attempt), complete=False) if torn and attempt else []
        return next((checkpoint_path(path) for path in reversed(tried) if checkpoint_path(path) in torn), "")
