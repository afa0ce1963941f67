"""A job's checkpoints, from the supervisor's side: where they are, which one an attempt begins with, and what was recorded of them.

In: the declared patterns, the places that were learned (learned.py), the state directory. Out: listings for the watcher, the answer to
SelectCheckpoint, manifests of what the watcher proved. Nothing in here fails a job: what goes wrong is in the answer, or is told by
`problems`. Everything is called in worker threads: files are read. Owns the cache of verdicts, which watcher and selection share, the
fences and the manifests.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from checkpointing import ordering
from checkpointing.common import NodeCheckpoint, Proof, is_shared, reads
from checkpointing.discover import Listing, find
from checkpointing.io.listing_cache import Recall
from checkpointing.io.reader import Interrupted
from checkpointing.io.tree import Reading
from checkpointing.manifest import check
from checkpointing.manifest.documents import About, Manifests, decode
from checkpointing.model import CheckpointingError, Identity, Verdict, Verification, nan_weights
from checkpointing.rejections import Fences
from checkpointing.retention import free_space, ownership, prune, rules
from checkpointing.retention.copies import Copies, Copy, Needed
from checkpointing.retention.move_journal import SetAside
from checkpointing.select import LIMIT_S, Spare, held, newest
from checkpointing.training import snapshot_writer
from checkpointing.verification import Cache, identity_of, verify
from supervisor.checkpoints import numerics
from supervisor.checkpoints.baseline import Baseline
from supervisor.checkpoints.discovery import Learned, Write
from supervisor.checkpoints.order import CheckpointOrder
from supervisor.checkpoints.permit import Permit
from supervisor.checkpoints.references import leads_to
from supervisor.checkpoints.shared_manifests import Neighbours
from supervisor.checkpoints.watcher import CheckpointWatcher, to_event, to_ref
from supervisor.core.events import CheckpointSelected
from supervisor.core.model import Unused
from supervisor.observe.path_patterns import escaped, is_of, pattern_of, unit_of
from supervisor.observe.progress_sampler import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from checkpointing.manifest.documents import Manifest
    from checkpointing.model import Candidate
    from checkpointing.select import Selection
    from supervisor.core.model import CheckpointRef
    from supervisor.job.job import Job

DIRECTORY: Final = "checkpoints"
MAGIC: Final = frozenset("*?[")
#: How many are looked into, the newest first, for a whole one beside a torn one.
MOST_BESIDE: Final = 4
#: A file server's clock differs from ours by no more than this, and some file systems keep whole seconds.
FILE_CLOCKS_S: Final = 2.0
MIXED: Final = "saved while nodes trained from different states"
#: How many of the newest are offered to the other nodes.
MOST_OFFERED: Final = 64


class JobCheckpoints:
    """The checkpoints of one job on this node."""

    def __init__(self, job: Job) -> None:
        """Read what earlier runs recorded."""
        self._job = job
        self._directory = job.state / DIRECTORY
        self._cache = Cache()
        self._fences: Fences | None = None
        settings = job.settings
        learns = settings.checkpoints.learn and settings.instrument.enabled
        hands_over = "" if settings.checkpoints.paths else settings.knobs.resume.hands_over
        self.learned = Learned(self._directory, job.run_id, hands_over) if learns else None
        self._manifests = Manifests(str(self._directory))
        self._order = CheckpointOrder(self._directory, self._manifests, self.learned, job.run_id)
        self._aside = SetAside(str(self._directory))
        self._copies = Copies(
            str(self._directory),
            int(settings.checkpoints.copies_gib * 2**30),
            order=self._order.order,
            is_abandoned=self._order.is_abandoned,
        )
        self._notes: tuple[str, ...] = ()  # to be said with the first selection
        self._recorded: dict[str, Manifest] = {}  # the newest of each path, of what the watcher proved
        self._reported: set[str] = set()  # paths of checkpoints among them
        self._brought: set[tuple[str, str]] = set()
        self._neighbours = Neighbours(job.state, DIRECTORY)
        self._baseline = Baseline(self._directory, job.settings.checkpoints.paths)
        self.has_rank_0: Callable[[], bool | None] = lambda: True  # is global rank 0 on this node; None: no rank is known yet
        self.short: Callable[[str], None] | None = None  # told once while there is no room for the next checkpoints
        self._is_short = False
        self.unprotected: Callable[[str], None] | None = None  # told once of each file that a kill during its save would lose
        self._unprotected: set[str] = set()
        self._pruner = prune.Pruner(str(self._directory))
        self.pruned: Callable[[str, int | None, str], None] | None = (
            None  # path, step, why it stays, of what checkpoints.keep does not keep
        )
        self.is_bringing: Callable[[str, str], bool] | None = None  # is it still to be sent to a mirror: path, id of the manifest
        self._offered: dict[NodeCheckpoint, Candidate | Spare] = {}  # to the other nodes, for the attempt that is to begin
        self._in_use: frozenset[str] = frozenset()  # what the attempt was given
        self._stays: set[tuple[str, str]] = set()  # told already
        self.bring: Callable[[str, int | None, str], None] | None = None  # to the mirrors: path, step, file of the manifest
        self.not_finite: Callable[[str], None] | None = None  # called once when numbers turn to NaN or Inf
        self.stumbled: Callable[[str], None] | None = None  # told once of each failure of the watcher itself
        self.several_nodes = False  # then ranks elsewhere write checkpoints too, which are not seen here
        self._attempt = 0
        self._beginning = threading.Lock()
        self._has_begun = False
        self._alive_until_ns = time.time_ns()  # of the last rank, by wall time

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read or recorded, last, each in one line."""
        learned = self.learned.problem if self.learned is not None else None
        fences = self._fences.problem if self._fences is not None else None
        found = (fences, learned, self._manifests.problem, self._copies.problem, self._order.problem, self._baseline.problem)
        return tuple(problem for problem in found if problem)

    def began(self, attempt: int) -> None:
        """Note which attempt's ranks are to be learned from. From the loop's thread."""
        self._attempt = attempt
        self._order.attempt_begins(attempt)

    def ended(self) -> None:
        """Note that no rank is left: what is written from now on is not this job's. From the loop's thread."""
        self._alive_until_ns = time.time_ns()

    def listing(self, *, candidates: bool = False, recall: Recall | None = None) -> Listing:
        """List the checkpoints that are declared or learned, and with `candidates` what may turn out to be one."""
        cwd = str(self._job.cwd)
        declared = find(self._job.settings.checkpoints.paths, cwd, recall)
        if self.learned is None:
            return declared
        patterns = self.learned.patterns(candidates=candidates)
        further = find(patterns, cwd, recall) if patterns else Listing(())
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

    def is_ours(self, path: str) -> bool:
        """Return whether a path lies where this job's checkpoints are declared, or where it was seen to save. No file is looked at."""
        return self._is_declared(path) or (self.learned is not None and self.learned.is_saved(path))

    def _is_declared(self, path: str) -> bool:
        declared = (os.path.join(self._job.cwd, pattern) for pattern in self._job.settings.checkpoints.paths)  # noqa: PTH118 (patterns)
        names = path, os.path.dirname(path)  # noqa: PTH120 (as above) -- a directory stands for the checkpoints in it
        return any(fnmatchcase(name, pattern) for pattern in declared for name in names)

    def _begin(self) -> None:
        """Before anything is read: take the run down, and what the ranks of a supervisor that was killed wrote last."""
        with self._beginning:
            if self._has_begun:
                return
            self._has_begun = True
            self.note_before(find(self._job.settings.checkpoints.paths, str(self._job.cwd)))
            self._notes = self._order.begin_run(self._copies)
            left = sorted(self._job.scratch.glob("attempt-[0-9]*"))
            if self.learned is not None and left:
                self.learned.absorb(left[-1], int(left[-1].name.rpartition("-")[2]), again=True)

    def is_own(self, path: str) -> bool:
        """Say whether this user's jobs wrote a checkpoint: ranks of this one were seen to, or it is what one of them recorded.

        Not every save is seen: one by way of `io.BytesIO`, or in a process of its own, is not. So what came to a declared place since the
        job began is this job's too. Where nothing is seen (learning is off) or ranks of other nodes write too, everything is.
        """
        if self.learned is None or self.several_nodes or self.learned.wrote(path):
            return True
        if self._job.settings.checkpoints.trusted and self._is_declared(path):
            return True
        identity, recorded = identity_of(path), self._manifests.get(path)
        if identity is None or (recorded is not None and recorded.identity == identity):
            return identity is not None
        if self._is_declared(path) and not self._baseline.has(path, identity):
            return True
        return self._neighbours.has_saved(path, identity)

    def absorb(self) -> None:
        """Learn from what the ranks wrote since the last time."""
        self._order.keep()
        self._absorb_saves()

    def _absorb_saves(self) -> bool:
        """Take in the save and load logs of the attempt's ranks. Returns whether anything was new."""
        attempt = self._attempt
        return self.learned is not None and attempt > 0 and self.learned.absorb(self._job.attempt_dir(attempt), attempt)

    def select(
        self, t: float, attempt: int, avoid: Collection[str] = (), *, suspect: bool = False, permit: Permit | None = None
    ) -> CheckpointSelected:
        """Find and verify the newest checkpoint that is not among `avoid`, whatever is written there now.

        No rank is alive on this node. Where the script resumes by itself, what it would stumble over is mended, as far as `permit` allows
        it: an attempt may begin before this ends.
        """
        permit = permit or Permit()
        checkpoints = self._job.settings.checkpoints
        declared = bool(checkpoints.paths)
        mended: tuple[tuple[str, str], ...] = ()
        try:
            self._begin()
            self._fences = self._fences or Fences(self._directory)
            self.absorb()
            self._rescue(permit)
            if permit.valid:
                self._order.step_back(avoid, self._copies)
            selection = self._newest(self._fences, avoid, suspect=suspect)
            if self.learned is not None and self._resumes_itself and permit.valid:
                self.learned.settle()
                torn = (*(path for path, _ in selection.fenced), *self._torn_candidates(self.learned), *self._hardly_begun(self.learned))
                mended = tuple(row for path in torn for row in self._mend(path, attempt, self.learned, permit))
                selection = self._newest(self._fences, avoid, suspect=suspect) if mended else selection
            if permit.valid:
                self._in_use = frozenset() if selection.chosen is None else frozenset({selection.chosen.path})
            notes, self._notes = (*self._notes, *selection.notes), ()
            unused = self._unused() if selection.chosen is None else ()
            stuck = self._stuck(selection, attempt, {path for path, _ in mended})
            return replace(to_event(selection, t, attempt), mended=mended, notes=notes, unused=unused, stuck=stuck)
        except (CheckpointingError, OSError) as error:
            return CheckpointSelected(t, attempt, None, found=int(declared), refused=((str(self._directory), str(error)),), mended=mended)

    def _unused(self) -> tuple[Unused, ...]:
        """Return where checkpoints of this job that are known to be whole lie, and nobody loads from. Nothing is read for it."""
        if self.learned is None or self._job.settings.checkpoints.paths:
            return ()
        places = [place.pattern for place in self.learned.places() if place.saved and not place.data]
        found: dict[str, list[Candidate]] = {}
        for one in find(places, str(self._job.cwd)).candidates if places else ():
            known = self._cache.get(one.path, one.identity)
            if known is not None and known.verdict is Verdict.VERIFIED and self.learned.is_saved(one.path):
                found.setdefault(pattern_of(one.path), []).append(one)
        newest = {pattern: max(ones, key=lambda one: one.mtime_ns or one.identity.mtime_ns).path for pattern, ones in found.items()}
        return tuple(Unused(pattern, len(found[pattern]), path) for pattern, path in sorted(newest.items()))

    def _stuck(self, selection: Selection, attempt: int, gone: Collection[str]) -> str:
        """Return the torn checkpoint that a rank of the last attempt tried in vain to load, and that is still there."""
        torn = {path for path, _ in selection.fenced if path not in gone}
        tried = loads(self._job.attempt_dir(attempt), complete=False) if torn and attempt else []
        return next((unit_of(path) for path in reversed(tried) if unit_of(path) in torn), "")

    # several nodes together (supervisor/checkpoints/node_agreement.py)

    def rescue(self, permit: Permit) -> tuple[str, str] | None:
        """Take in, and write to disk, what the dead ranks of this node left. Returns what could not be looked at, and why."""
        try:
            self._begin()
            self._fences = self._fences or Fences(self._directory)
            self.absorb()
            self._rescue(permit)
            if self.learned is not None:
                self.learned.settle()
        except (CheckpointingError, OSError) as error:
            return str(self._directory), str(error)
        return None

    def distrust(self, since_t: float) -> None:
        """Fence for good what was written since `since_t` (wall time), and let go our copies of it.

        Nodes trained from different states then. Raises CheckpointingError, OSError.
        """
        since_ns = int((since_t - FILE_CLOCKS_S) * 1e9)
        fences = self._fences = self._fences or Fences(self._directory)
        written = [one for one in self.listing(candidates=True).candidates if one.mtime_ns >= since_ns]
        fences.add([(one.path, one.identity, MIXED) for one in written], "mixed")
        for copy in self._copies.all():
            if copy.made_ns >= since_ns:
                self._copies.remove(copy)

    def offer(self, avoid: Collection[str], agreements: Mapping[int, int]) -> tuple[tuple[NodeCheckpoint, ...], Selection]:
        """List what this node could resume from, newest first, and what stands against the rest. Nothing is read through.

        agreements: number of the nodes' agreement with which an attempt of this run began. Raises CheckpointingError, OSError.
        """
        self._order.step_back(avoid, self._copies)
        rows, selection = held(
            self.listing(),
            self._fences,
            self._cache,
            manifests=self._manifests,
            spares=self._spares(),
            avoid=frozenset(avoid),
            order=self._order.order(),
            own=self.is_own,
        )
        self._offered = {}
        for found, step in rows[:MOST_OFFERED]:
            if isinstance(found, Spare):
                path, name, identity, digest = found.place, found.manifest.name, identity_of(found.place), found.manifest.id
            else:
                manifest = self._manifests.get(found.path)
                path, name, identity = found.path, os.path.basename(found.path), found.identity  # noqa: PTH119 (strings throughout)
                digest = manifest.id if manifest is not None and manifest.identity == identity else ""
            if identity is not None:
                written_in = self._written_in(path, agreements)
                self._offered[NodeCheckpoint(path, name, step, identity.size, identity.mtime_ns, identity.ino, digest, written_in)] = found
        return tuple(self._offered), selection

    def _written_in(self, path: str, agreements: Mapping[int, int]) -> int:
        writes = self.learned.writes(path) if self.learned is not None else ()
        whole = bool(writes) and not any(write.cut for write in writes)
        return agreements.get(max(write.attempt for write in writes), 0) if whole else 0

    def prove(self, candidate: Sequence[NodeCheckpoint], node: int, *, suspect: bool) -> Proof:
        """Return whether this node, `node` of all, can load its row of a candidate. One node reads a file that several see."""
        row = candidate[node]
        found = self._offered[row]
        try:
            identity = identity_of(row.path)
            if identity is None or (identity.ino, identity.size, identity.mtime_ns) != (row.inode, row.n_bytes, row.mtime_ns):
                return Proof(f"{row.path} changed, or is gone")
            if not reads(candidate, node):
                return Proof("" if os.access(row.path, os.R_OK) else f"{row.path} cannot be read")
            only = Listing(()) if isinstance(found, Spare) else Listing((found,))
            selection = self._select_from(only, [found] if isinstance(found, Spare) else (), (), suspect=suspect, fences=self._fences)
            chosen = selection.chosen
            if chosen is None:
                whys = (*selection.fenced, *selection.dangerous, *selection.unverifiable, *selection.unknown, *selection.foreign)
                return Proof(": ".join(whys[0]) if whys else f"{row.path} is not whole")
            digest = row.digest
            if not is_shared(candidate) and not isinstance(found, Spare):
                manifest = self._record(chosen, Reading())
                digest = manifest.id if manifest is not None else ""
            return Proof("", chosen.step, digest, chosen.level, tuple(sorted(nan_weights(chosen.non_finite or ()))))
        except (CheckpointingError, OSError) as error:
            return Proof(f"{row.path}: {error}")

    def take(self, path: str) -> None:
        """Keep what the attempt is given from being pruned."""
        self._in_use = frozenset({path})

    def _mend(self, path: str, attempt: int, learned: Learned, permit: Permit) -> Iterator[tuple[str, str]]:
        """Do as `_mended`; where that fails, with a full disk say, what was chosen stands all the same."""
        try:
            yield from self._mended(path, attempt, learned, permit)
        except OSError as error:
            yield path, f"it could not be moved aside: {error}"

    def _rescue(self, permit: Permit) -> None:
        """Write to disk what dead ranks left in shared memory (checkpointing.Snapshotter) for the directories of checkpoints."""
        learned = self.learned.patterns() if self.learned is not None else ()
        above = {os.path.dirname(os.path.join(self._job.cwd, one)) for one in (*self._job.settings.checkpoints.paths, *learned)}  # noqa: PTH118, PTH120 (patterns)
        for directory in sorted(above):
            if not MAGIC & set(directory):
                with permit.held() as allowed:
                    if allowed:
                        snapshot_writer.rescue(directory)

    @property
    def _resumes_itself(self) -> bool:
        settings = self._job.settings
        return settings.job.resumes_itself or not settings.checkpoints.paths

    @property
    def prefers_finite(self) -> bool:
        """Whether an older checkpoint is handed out where the newest holds weights that turned to NaN."""
        return not self._resumes_itself

    def _newest(self, fences: Fences | None, avoid: Collection[str], *, suspect: bool) -> Selection:
        return self._select_from(self.listing(), self._spares(), avoid, suspect=suspect, fences=fences)

    def _spares(self) -> tuple[Spare, ...]:
        return () if self._resumes_itself else self._copies.spares()  # it would not look there

    def _select_from(
        self, listing: Listing, spares: Sequence[Spare], avoid: Collection[str], *, suspect: bool, fences: Fences | None = None
    ) -> Selection:
        checkpoints = self._job.settings.checkpoints
        return newest(
            listing,
            fences,
            self._cache,
            manifests=self._manifests,
            spares=spares,
            suspect=suspect,
            budget_s=checkpoints.verify_budget_s,
            limit_s=LIMIT_S if checkpoints.paths else checkpoints.verify_budget_s,  # what the script does itself does not wait for us
            avoid=avoid,
            prefer_finite=self.prefers_finite,
            order=self._order.order(),
            own=self.is_own,
        )

    def _torn_candidates(self, learned: Learned) -> tuple[str, ...]:
        """Return what a save of this run was cut off in, at a place that nobody was seen to load from, where a whole one lies beside it.

        A script that resumes from the newest would take it next. Where nothing whole is beside it, it would start from scratch without it.
        """
        candidates = [one for one in self.listing(candidates=True).candidates if not self.is_checkpoint(one.path)]
        cut = {one.path for one in candidates if any(write.cut for write in learned.writes(one.path))}
        whole = self._whole_places({pattern_of(path) for path in cut}, [one for one in candidates if one.path not in cut])
        return tuple(sorted(path for path in cut if pattern_of(path) in whole))

    def _hardly_begun(self, learned: Learned) -> tuple[str, ...]:
        """Return the directories that this run made for a checkpoint and in which there is not enough for any format to know it.

        Nobody lists them, and a script that takes the newest by name takes such a one. The script may have a format of its own: one is
        left over from a save where nothing in it was saved to its end; where a save was cut off, at a place of checkpoints; or where beside
        it lies one that is known.
        """
        listed = self.listing(candidates=True).candidates
        begun = [row for row in learned.begun() if all(row[0] != one.path for one in listed)]
        whole = self._whole_places({pattern_of(unit) for unit, *_ in begun}, listed) if begun else set()
        found = [unit for unit, some, all_ in begun if all_ or (some and self.is_checkpoint(unit)) or pattern_of(unit) in whole]
        for unit in found:
            identity = identity_of(unit)
            if identity is not None:
                why = "a save began it and did not end"
                self._cache.put(Verification(unit, identity, Verdict.INCOMPLETE, why, reasons=(why,)))
        return tuple(sorted(found))

    def _whole_places(self, places: Collection[str], candidates: Sequence[Candidate]) -> set[str]:
        """Return those of the places of which one of the newest candidates is whole."""
        until = time.monotonic() + self._job.settings.checkpoints.verify_budget_s
        beside = [one for one in candidates if pattern_of(one.path) in places]
        whole: set[str] = set()
        for one in sorted(beside, key=lambda one: one.mtime_ns, reverse=True)[:MOST_BESIDE]:
            known = self._cache.get(one.path, one.identity) or verify(
                one.path, interrupted=lambda: time.monotonic() > until, own=self.is_own(one.path)
            )
            self._cache.put(known)
            if known.verdict is Verdict.VERIFIED:
                whole.add(pattern_of(one.path))
        return whole

    def _mended(self, path: str, attempt: int, learned: Learned, permit: Permit) -> Iterator[tuple[str, str]]:
        """Move a torn checkpoint aside, where the rule of ownership holds; yield its path and what was done.

        One that something else leads to, a link or a framework's file of the latest, stays, unless a copy takes its place at once.
        """
        identity = identity_of(path)
        if identity is None:
            return
        found = self._cache.get(path, identity) or verify(path, own=self.is_own(path))
        self._cache.put(found)
        copy = self._copies.newest_for(path) if self.is_checkpoint(path) else None
        leads = leads_to(path)
        seen = learned.seen(path, self._alive_until_ns)
        stays = "" if copy is not None else f"because {leads} leads to it" if leads else self._why_last(found, learned)
        if stays:
            if not ownership.why_not(found, seen, ranks_alive=not permit.alone):
                yield path, f"{found.reason}: left where it is, {stays}"
            return
        with permit.held() as allowed:
            aside = self._aside.move(found, attempt, seen, ranks_alive=not permit.alone) if allowed else None
            done = self._moved(aside.to, attempt, found.reason, copy, leads) if aside is not None and aside.to else ""
        if done:
            yield path, done

    def _moved(self, to: str, attempt: int, reason: str, copy: Copy | None, leads: str) -> str:
        """Put the copy, where there is one, in the place of a torn checkpoint that was moved; return what was done."""
        problem = "" if copy is None else self._copies.put_back(copy, self._aside, attempt, reason)
        if problem and leads:
            self._aside.undo(next(change.id for change in reversed(self._aside.changes()) if change.to == to))
            return f"{reason}: left where it is: the copy could not be put there: {problem}"
        step = "" if copy is None or copy.manifest.step is None else f" of step {copy.manifest.step}"
        back = (
            "" if copy is None else f"; the copy could not be put back: {problem}" if problem else f"; the copy{step} was put in its place"
        )
        return f"{reason}: moved to {to}{back}"

    def saved_since(self, since_t: float, limit_s: float) -> CheckpointRef | None:
        """Return the newest whole checkpoint that was written since then (wall time), None where none is found in time. Nothing is moved.

        No rank is alive on this node.
        """
        until, since_ns = time.monotonic() + limit_s, int((since_t - FILE_CLOCKS_S) * 1e9)
        try:
            self.absorb()
            new = [one for one in self.listing().candidates if one.mtime_ns >= since_ns]
        except (CheckpointingError, OSError):
            return None  # the next start looks again, and says it
        for one in sorted(new, key=lambda one: one.mtime_ns, reverse=True):
            found = verify(one.path, interrupted=lambda: time.monotonic() > until, own=self.is_own(one.path))
            if found.verdict is Verdict.VERIFIED:
                return to_ref(found)
        return None

    def _why_last(self, found: Verification, learned: Learned) -> str:
        """Say why the last one of a place stays, whose save was seen to end: somebody may get it back. "" for any other."""
        if found.verdict is not Verdict.BAD or any(write.cut for write in learned.writes(found.path)):
            return ""
        place = pattern_of(found.path)
        others = [one for one in self.listing(candidates=True).candidates if one.path != found.path]
        return "" if self._whole_places({place}, others) else "because its save ended, and no whole checkpoint lies beside it"

    def has_good(self) -> bool:
        """Say whether any checkpoint on this disk is proven whole. Nothing is fenced: ranks of other nodes may be writing."""
        try:
            self._begin()
            fences = Fences(self._directory)
            chosen = self._newest(None, (), suspect=False).chosen
            return chosen is not None and fences.get(chosen.path, chosen.identity) is None
        except (CheckpointingError, OSError):
            return True  # the selection comes to it as well, and says it

    def note_before(self, listing: Listing) -> None:
        """Record what is declared and here before any rank starts."""
        self._baseline.take(listing.candidates)

    def restored(self, path: str, began: int, manifest: str = "") -> None:
        """Take a file that was restored from a mirror for a checkpoint: it was one before this disk forgot it.

        `began`: when the run began that saved it; this one is a later one, whatever our clock says. `manifest`: the mirror's, where every
        byte was held against it; what was recorded of this job is recorded here again.
        """
        self._begin()
        self._order.restored(began)
        identity = identity_of(path)
        if identity is not None:
            self._baseline.add(path, identity)
        if identity is not None and manifest:
            known = decode(manifest.encode("ascii"))
            if known.about.job == self._job.name:
                self._manifests.put(replace(known, path=path, identity=identity))
        if self.learned is not None:
            self.learned.teach(path)

    def numbers(self) -> str:
        """Say whether what this run saved last holds numbers that turned to NaN or Inf; "" where it does not."""
        newest = numerics.newest_of_run(self._manifests.all(), self._job.run_id)
        return "" if newest is None else numerics.report(newest)

    def last_recorded(self) -> Manifest | None:
        """Return the newest checkpoint of this run that is recorded as verified. Reads nothing.

        By its time alone, a file that another job saved to the same directory meanwhile is of this run too. What ranks of this job were
        seen to save goes before it.
        """
        order = self._order.order()
        own = [one for path, one in list(self._recorded.items()) if one.about.run == self._job.run_id and path in self._reported]
        seen = [] if self.several_nodes else [one for one in own if self._was_seen_saved(one)]
        return min(seen or own, key=lambda one: order.of_manifest(one, ordering.HERE, one.path), default=None)

    def _was_seen_saved(self, made: Manifest) -> bool:
        """Say whether ranks of this run were seen to save a checkpoint as it was recorded."""
        if self.learned is None:
            return False
        return bool(self.learned.writes(made.path)) if made.is_tree else self.learned.attempt_of(made.path, made.identity) is not None

    def watcher(self, on_verified: Callable[[CheckpointRef, int], None]) -> CheckpointWatcher | None:
        """Make the watcher, where any checkpoint is declared or may be learned. `on_verified` gets the attempt that saved it too."""
        checkpoints = self._job.settings.checkpoints
        if not checkpoints.paths and self.learned is None:
            return None

        swept, recall = False, Recall()

        def look() -> Listing:
            nonlocal swept
            if not swept:  # in the watcher's thread, for there may be many
                swept = True
                self._begin()
                self._manifests.sweep()
            self.absorb()
            for path in self._unread_saves():
                recall.forget(path)
            listing = self.listing(candidates=True, recall=None if watcher.is_finishing else recall)
            recall.end_listing()
            self._bring(listing)
            return listing

        def verified(found: Verification, reading: Reading, news: bool) -> None:  # noqa: FBT001 (the watcher's)
            manifest = self._record(found, reading)
            if manifest is not None:
                self._recorded[found.path] = manifest
                self._keep_copy(manifest, reading)
                self._bring_one(manifest)
                self._foresee(manifest)
                self._prune(manifest)
            if not self.is_checkpoint(found.path):
                return
            self._reported.add(found.path)
            if news:
                on_verified(to_ref(found if manifest is None else replace(found, level=check.LEVEL)), self._made_in(found))

        self._copies.sweep()
        watcher = CheckpointWatcher(
            look,
            verified,
            self._cache,
            order=self._order.order,
            is_wanted=self._may_be_pruned,
            interval_s=checkpoints.scan_interval_s,
            on_trouble=self.stumbled or (lambda _: None),
            own=self.is_own,
            elsewhere=lambda candidate: self._elsewhere(candidate, is_last=watcher.is_finishing),
            is_ended=lambda candidate: self.learned is not None and self.learned.is_ended(candidate.path, candidate.identity),
            has_news=lambda: self._absorb_saves() and bool(self._unread_saves()),
        )
        return watcher

    def _unread_saves(self) -> tuple[str, ...]:
        """Return the files that are written in place of which a rank ended a save, and that were not verified since."""
        ended = () if self.learned is None else self.learned.ended()
        return tuple(write.path for write in ended if self._is_in_place(write.path) and not self._is_recorded(write))

    def _is_recorded(self, write: Write) -> bool:
        known = self._recorded.get(write.path)
        return known is not None and write.now is not None and known.identity == Identity(*write.now)

    def _elsewhere(self, candidate: Candidate, *, is_last: bool) -> Verification | None:
        """Return what another node found of a checkpoint; WRITING while it is to read it; None where this node is.

        A file is read by the node whose ranks saved it, anything else by the node of rank 0. What that node does not record in time, or
        where it does not share the state directory, each node reads for itself.
        """
        path, identity = candidate.path, candidate.identity
        is_mine = not candidate.is_directory and self.learned is not None and self.learned.wrote(path)
        if not self.several_nodes or is_mine or self.has_rank_0():
            return None
        adopted = self._adopt(path, identity)
        if adopted is not None:
            return Verification(path, identity, Verdict.VERIFIED, step=adopted.step, level=check.LEVEL, within=adopted.within)
        if is_last or not self._neighbours.is_worth_waiting(path, identity):
            return None
        return Verification(path, identity, Verdict.WRITING, "another node reads it")

    def _adopt(self, path: str, identity: Identity) -> Manifest | None:
        """Take over what another node recorded of a checkpoint, as of this node's run: each node counts runs and attempts for itself."""
        found = self._neighbours.recorded(path, identity) if self.several_nodes else None
        own = None if found is None else self._of_this_node(found)
        return own if own is not None and self._manifests.put(own) else None

    def _of_this_node(self, made: Manifest) -> Manifest:
        """Write down the lineage of a checkpoint, as this node knows it."""
        lineage = self._order.lineage_of(made.path, made.identity, made.saved_ns)
        return replace(made, about=replace(made.about, run=lineage.run, began=lineage.began, attempt=lineage.attempt))

    def _made_in(self, found: Verification) -> int:
        """Return the attempt of this run that saved a checkpoint; 0 where none did."""
        try:
            saved_ns = os.stat(found.path).st_mtime_ns  # noqa: PTH116 (strings throughout)
        except OSError:
            return 0
        lineage = self._order.lineage_of(found.path, found.identity, saved_ns)
        return lineage.attempt if lineage.run == self._job.run_id else 0

    def _may_be_pruned(self, candidate: Candidate) -> bool:
        """Say whether what was here at our start is to be recorded: `checkpoints.keep` removes only what is, of this run."""
        if not self._job.settings.checkpoints.keep:
            return False
        mtime_ns = candidate.mtime_ns or candidate.identity.mtime_ns
        return self._order.lineage_of(candidate.path, candidate.identity, mtime_ns).run == self._job.run_id

    def _record(self, found: Verification, reading: Reading) -> Manifest | None:
        """Take down what was proven, byte by byte, so that a later change of it is seen. None where it changed meanwhile."""
        self._begin()
        known = self._manifests.get(found.path)
        if known is not None and known.identity == found.identity:
            return known
        adopted = self._adopt(found.path, found.identity) if self.has_rank_0() is False else None
        if adopted is not None:
            return adopted
        try:
            part_bytes = self._job.settings.checkpoints.part_mib << 20
            manifest = self._of_this_node(check.build(found, About(self._job.name), reading=reading, part_bytes=part_bytes))
        except (check.Changed, Interrupted, OSError):
            return None  # it is looked at anew when it stands still
        manifest = self._compared(manifest, known) if manifest.non_finite else manifest
        if not self._manifests.put(manifest):
            return None
        self._compare_later(manifest)
        return manifest

    def _compared(self, made: Manifest, before: Manifest | None = None) -> Manifest:
        """Note which of its tensors an earlier save of this run held finite, and report it if the save before it was not so.

        `before`: what was recorded of the same path last, which is no longer there.
        """
        earlier = [one for one in self._manifests.all() if one.path != made.path and one.saved_ns < made.saved_ns]
        earlier += [before] if before is not None else []
        last = numerics.newest_of_run(earlier, self._job.run_id, pattern_of(made.path))
        made = replace(made, non_finite=numerics.compared(made.non_finite, last))
        if self.not_finite is not None and numerics.turned(made) and not (last is not None and numerics.turned(last)):
            self.not_finite(numerics.report(made))
        return made

    def _compare_later(self, made: Manifest) -> None:
        """Compare those anew that were saved after it and verified before it: of several at once the newest is read first."""
        place, when = pattern_of(made.path), made.saved_ns
        later = [one for one in self._recorded.values() if one.non_finite and pattern_of(one.path) == place and one.saved_ns > when]
        for one in sorted(later, key=lambda one: one.saved_ns):
            again = self._compared(one) if one.path != made.path and not numerics.turned(one) else one
            if again != one and self._manifests.put(again):
                self._recorded[one.path] = again

    def _keep_copy(self, manifest: Manifest, reading: Reading) -> None:
        """Keep a copy of what the script writes over again and again: the next save may leave it torn.

        Where none can be had, and a save is not seen to leave the old file whole until the new one is, that is told once.
        """
        path = manifest.path
        if not self._is_in_place(path) or manifest.has_lost_weights or self._job.settings.checkpoints.copies_gib <= 0:
            return
        replaces = self.learned is not None and self.learned.replaces(path)
        kept = self._copies.keep(manifest, self._policy, Needed(self._in_use), may_link=replaces, reading=reading)
        is_lost = kept.copy is None and not kept.is_transient and not replaces and self._copies.newest_for(path) is None
        is_alone = all(other == path for other in self._recorded)
        if is_lost and is_alone and path not in self._unprotected and self.unprotected is not None:
            self._unprotected.add(path)
            self.unprotected(
                f"a kill during the next save of {path} would lose it: the file is written in place, and has no copy: {kept.reason}"
            )

    def _is_in_place(self, path: str) -> bool:
        """Say whether a checkpoint, or what may turn out to be one, has a name that the next save will have too."""
        is_one = self.is_checkpoint(path) or (self.learned is not None and self.learned.is_known(path))
        return is_one and pattern_of(path) == escaped(path)

    def _bring(self, listing: Listing) -> None:
        """Have the mirrors get what was recorded before it was known to be a checkpoint."""
        for candidate in listing.candidates if self.bring is not None else ():
            manifest = self._recorded.get(candidate.path)
            if manifest is not None and manifest.identity == candidate.identity:
                self._bring_one(manifest)

    def _bring_one(self, manifest: Manifest) -> None:
        """Have the mirrors get it, once."""
        name = manifest.path, manifest.id
        if self.bring is None or name in self._brought or not self._sends(manifest):
            return
        self._brought.add(name)
        self.bring(manifest.path, manifest.step, self._manifests.file_of(manifest.path))

    def _sends(self, manifest: Manifest) -> bool:
        """Say whether this node sends a checkpoint: one that its ranks were seen to save; of what no hook saw, the node of rank 0.

        Of a directory that ranks of several nodes saved together, the first of these nodes sends it, where they share a state directory.
        Not seen are safetensors written by a plain `open`, C++ writers, other processes. What was saved so must be declared, and new.
        """
        if self.learned is not None and self.learned.wrote(manifest.path):
            first = not (self.several_nodes and manifest.is_tree) or self._neighbours.is_first(manifest.path, self.learned)
            return first and self.is_checkpoint(manifest.path)
        return (
            self.has_rank_0() is True
            and not self._baseline.has(manifest.path, manifest.identity)
            and any(manifest.path == one.path for one in find(self._job.settings.checkpoints.paths, str(self._job.cwd)).candidates)
        )

    def _make_room(self, directory: str) -> str:
        """Let go our own copies but the newest, where they lie on the disk that is short; say it."""
        try:
            if os.stat(directory).st_dev != os.stat(self._directory).st_dev:  # noqa: PTH116 (strings throughout)
                return ""
        except OSError:
            return ""
        gone = self._copies.prune(rules.Policy(1), Needed(in_use=self._in_use)).removed
        return f"; {len(gone)} older copies of ours were removed" if gone else ""

    @property
    def _policy(self) -> rules.Policy:
        """What stays of copies of ours, and of the job's own checkpoints where a person asked for that."""
        checkpoints = self._job.settings.checkpoints
        return rules.Policy(checkpoints.keep or rules.Policy().newest, checkpoints.keep_every or None)

    def _prune(self, proven: Manifest) -> None:
        """Remove this job's older checkpoints of the same place, where `checkpoints.keep` says so. `proven` was read through just now."""
        if not self._job.settings.checkpoints.keep or self.learned is None or not self.is_checkpoint(proven.path):
            return
        place, fences, order = pattern_of(proven.path), self._fences, self._order.order()
        # of those that are read in one look the newest comes first, and stands for those that it lets go
        read = [one for one in self._recorded.values() if pattern_of(one.path) == place]
        proven = min(read, key=lambda one: order.of_manifest(one, ordering.HERE, one.path))
        made_here = [made for made in self._manifests.all() if pattern_of(made.path) == place and self.is_checkpoint(made.path)]
        finite = numerics.newest_of_run([made for made in made_here if not made.has_lost_weights], self._job.run_id)
        rows = [
            prune.Row(
                made,
                self.learned.seen(made.path, (made.made_unix_s + 1) * 10**9, made.identity),
                in_use=made.path in self._in_use or (made is finite and proven.has_lost_weights),
                uploading=self.is_bringing is not None and self.is_bringing(made.path, made.id),
                fenced=fences is None or fences.get(made.path, made.identity) is not None,
                leads=leads_to(made.path),
            )
            for made in made_here
        ]
        for one in self._pruner.prune(rows, self._policy, proven.path, order):
            if not one.reason:
                self._manifests.forget(one.path)
                self._recorded.pop(one.path, None)
            name = one.path, one.reason
            if self.pruned is not None and (not one.reason or name not in self._stays):
                self._stays.add(name)
                self.pruned(one.path, one.step, one.reason)

    def _foresee(self, manifest: Manifest) -> None:
        """Tell when the next checkpoints will not fit; one that is written in place needs no more room than it has."""
        path = manifest.path
        if self.short is None or self._is_in_place(path):
            return
        found = free_space.forecast(os.path.dirname(path), manifest.n_bytes)  # noqa: PTH120 (strings throughout)
        if found.room is free_space.Room.SHORT and not self._is_short:
            fit = (
                f"{found.fit} of the next {free_space.SAVES_AHEAD} checkpoints fit"
                if found.fit is not None
                else "the next checkpoints do not fit"
            )
            self.short(f"{fit} into {found.directory}: {found.reason}{self._make_room(found.directory)}")
        if found.room is not free_space.Room.UNKNOWN:
            self._is_short = found.room is free_space.Room.SHORT
