"""Moves torn checkpoints out of the way of a script that resumes by itself, and puts a copy in their place.

Only what this run's ranks logged is touched, by the rule of ownership (checkpointing/retention/ownership.py). Where no checkpoints are
declared and no rank was seen to load, one thing more must hold: what remains is as good as before the save. That is a whole checkpoint
beside, a verified copy, or nothing, where nothing lay before: a directory in which no save ended, or the first save of all, in which the
ranks died. A move is a rename with a journal, so that `supervise checkpoints undo` reverses it.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from checkpointing.io.read_watch import DiskSilent
from checkpointing.io.reader import Interrupted
from checkpointing.io.tree import ReadOptions
from checkpointing.model import Verdict, Verification
from checkpointing.retention import ownership
from checkpointing.retention.aside import advised_move
from checkpointing.step_names import is_temporary
from checkpointing.verification import identity_of, verify
from supervisor.checkpoints.references import leads_to
from supervisor.observe.ranks import heartbeats, save_logs
from supervisor.observe.ranks.path_patterns import pattern_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from checkpointing.model import Candidate
    from checkpointing.retention.aside import AsideChange, MovedFile
    from checkpointing.retention.copies import Copy
    from supervisor.checkpoints.discovery.from_logs import Discovery
    from supervisor.checkpoints.records import CheckpointRecords

#: How many checkpoints are read, the newest first, to find a whole one beside a torn one.
MOST_BESIDE: Final = 4


class RepairPermission:
    """One selection's permission to change files: it has it while no rank lives, and loses it before ranks are started.

    A selection runs in a worker thread that may be left behind: by a stop, or by the next selection after its nodes gave it up. When its
    disk answers again, that thread must not rename a file which a living rank writes. One lock makes the question and the change one step,
    so `revoke` returns after the last change is done, and no other can follow.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_valid = True

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Yield whether a change is allowed. A change inside the block is done before `revoke` returns."""
        with self._lock:
            yield self.is_valid

    def revoke(self) -> None:
        """Allow no further change. Waits for one that is under way, so not on the loop's thread."""
        with self._lock:
            self.is_valid = False


class CheckpointRepair:
    """Repairs the checkpoints of one job, while no rank is alive on this node.

    With several nodes nothing is moved: whether a rank of another node is alive is not known.
    """

    def __init__(self, records: CheckpointRecords, discovery: Discovery) -> None:
        self._records, self._discovery = records, discovery
        self._trusts, self._locations = records.provenance.trusts, records.locations
        self._ranks_ended_ns = time.time_ns()
        self._died_in_first: frozenset[str] = frozenset()  # the first save of its location, in which the ranks of an attempt died

    def ranks_ended(self) -> None:
        """Note that no rank is left: files written from now on (wall time) are not this job's. Waits for no disk."""
        self._ranks_ended_ns = time.time_ns()

    def repair(self, rejected: Sequence[str], attempt: int, permission: RepairPermission) -> tuple[tuple[str, str], ...]:
        """Move torn checkpoints aside: the rejected ones, and those whose save was interrupted. Return each path with its repair."""
        self._discovery.stat_interrupted_saves()
        self._died_in_first |= self._first_saves()
        torn = dict.fromkeys((*rejected, *self._interrupted_candidates(), *self._unfinished_directories(), *self._torn_first_saves()))
        return tuple(row for path in torn for row in _guarded(path, self._repair(path, attempt, permission)))

    def clear_way(self, path: str, attempt: int, permission: RepairPermission) -> tuple[tuple[str, str], ...]:
        """Set aside the file in the way of the last attempt's save. Return the path with the action."""
        self._discovery.stat_interrupted_saves()
        return tuple(_guarded(path, self._clear(path, attempt, permission)))

    def bring_back(self, change: int, permission: RepairPermission) -> tuple[tuple[str, str], ...]:
        """Move back a file that was set aside, by the number of that change: the script misses it. Return the path with the action."""
        moved = next((aside_change for aside_change in self._records.moves.standing() if aside_change.id == change), None)
        return () if moved is None else tuple(_guarded(moved.path, self._bring_back(moved, permission)))

    def judged(self, path: str, interrupted: Callable[[], bool] = lambda: False) -> Verification | None:
        """Return the verdict on a checkpoint or on the rest of a save; None where it is gone, or was not read in time."""
        identity = identity_of(path)
        if identity is None:
            return None
        rest = "its name is that of a save that did not end" if is_temporary(path) else ""
        if not rest and self._is_begun(path):
            rest = "a save began it and did not end"
        if rest:
            return Verification(path, identity, Verdict.INCOMPLETE, rest, reasons=(rest,))
        known = self._records.cache.get(path, identity)
        if known is not None:
            return known
        try:
            verification = verify(path, own=self._trusts(path), reading=ReadOptions(interrupted=interrupted))
        except Interrupted:
            return None
        self._records.cache.put(verification)
        return verification

    def _is_begun(self, path: str) -> bool:
        """Return whether a save began a directory and did not end. One that was refused, and wrote nothing, proves nothing of it."""
        if all(path != directory for directory, some, _ in self._discovery.unfinished() if some):
            return False
        records, writes = self._records, self._discovery.writes(path)
        return any(write.interrupted and write.attempt != records.attempt for write in writes) or not records.is_older(path)

    def is_first_save(self, path: str) -> bool:
        """Return whether a checkpoint is the first at its location, and the ranks of an attempt died in its save, or right after it."""
        return path in self._died_in_first and self._discovery.is_first(path)

    def why_not_aside(self, verification: Verification, alive_until_ns: int) -> str:
        """Return why the file in the way of a save must not be set aside; "" if it may: the rest of a save, or one not used again."""
        self._discovery.stat_interrupted_saves()
        alive, seen = self._records.several_nodes, self._discovery.written_files(verification.path, alive_until_ns)
        if self._is_rejected(verification):
            return ownership.A_RANK_LIVES if alive else ownership.not_written(verification.path, verification.identity, seen)
        return ownership.why_not(verification, seen, ranks_alive=alive)

    def _is_rejected(self, verification: Verification) -> bool:
        return (
            verification.path in self._records.avoided or self._records.rejections.get(verification.path, verification.identity) is not None
        )

    def _clear(self, path: str, attempt: int, permission: RepairPermission) -> Iterator[tuple[str, str]]:
        verification = self.judged(path)
        if verification is None:
            return
        seen, alive = self._discovery.written_files(path, self._ranks_ended_ns), self._records.several_nodes
        move = self._records.moves.move_rejected if self._is_rejected(verification) else self._records.moves.move
        with permission.held() as allowed:
            moved = move(verification, attempt, seen, ranks_alive=alive) if allowed else None
        if moved is not None:
            done = self._set_aside_text(path, moved) if moved.to else f"left where it is: {moved.reason}"
            yield path, f"{verification.reason if self.is_first_save(path) else 'it was in the way of a save'}: {done}"

    def _bring_back(self, moved: AsideChange, permission: RepairPermission) -> Iterator[tuple[str, str]]:
        with permission.held() as allowed:
            undone = self._records.moves.undo(moved.id) if allowed else ()
        for undo in undone:
            done = f"it could not be moved back: {undo.problem}" if undo.problem else f"it was moved back from {moved.to}"
            yield moved.path, f"the script misses the file that was set aside: {done}"

    def _repair(self, path: str, attempt: int, permission: RepairPermission) -> Iterator[tuple[str, str]]:
        """Move a torn checkpoint aside if the rule of ownership holds; yield its path with its repair.

        If a link or a framework's pointer file leads to it, it stays, unless a copy takes its place at once.
        """
        records = self._records
        identity = identity_of(path)
        if identity is None:
            return
        verification = records.cache.get(path, identity) or verify(path, own=self._trusts(path))
        records.cache.put(verification)
        copy = records.copies.newest_for(path)
        leads = leads_to(path)
        seen = self._discovery.written_files(path, self._ranks_ended_ns)
        reasons = (f"because {leads} leads to it" if leads else "", self._was_moved_back(verification)) if copy is None else ()
        stays = next(filter(None, reasons), "" if copy is not None else self._why_alone(verification))
        if stays:
            if not ownership.why_not(verification, seen, ranks_alive=self._records.several_nodes):
                yield path, f"{verification.reason}: left where it is, {stays}"
            return
        with permission.held() as allowed:
            moved = records.moves.move(verification, attempt, seen, ranks_alive=self._records.several_nodes) if allowed else None
            done = self._put_back(path, moved, attempt, verification.reason, copy, leads) if moved is not None and moved.to else ""
        if done:
            yield path, done

    def _put_back(self, path: str, moved: MovedFile, attempt: int, reason: str, copy: Copy | None, leads: str) -> str:  # noqa: PLR0913, PLR0917
        """Put the copy, if there is one, in the place of a torn checkpoint that was moved; return a description."""
        moves = self._records.moves
        problem = "" if copy is None else self._records.copies.put_back(copy, moves, attempt, reason)
        identity = identity_of(path)
        if copy is not None and not problem and identity is not None:  # its bytes were compared while it was copied
            self._records.manifests.put(replace(copy.manifest, identity=identity))
        if problem and leads:
            moves.undo(next(change.id for change in reversed(moves.changes()) if change.to == moved.to))
            return f"{reason}: left where it is: the copy could not be put there: {problem}"
        step = "" if copy is None or copy.manifest.step is None else f" of step {copy.manifest.step}"
        back = (
            "" if copy is None else f"; the copy could not be put back: {problem}" if problem else f"; the copy{step} was put in its place"
        )
        return f"{reason}: {self._set_aside_text(path, moved)}{back}"

    def _set_aside_text(self, path: str, moved: MovedFile) -> str:
        inside = f", inside the directory that the script lists, because {moved.note}" if moved.note else ""
        anew = "; it was the first save, and nothing older lies there: the run begins anew" if self.is_first_save(path) else ""
        return f"moved to {moved.to}{inside}{anew}"

    def _was_moved_back(self, verification: Verification) -> str:
        """Return that it was set aside before and moved back, by a person or because the script missed it; "" for any other."""
        moves = (change for change in self._records.moves.changes() if change.kind == "moved" and change.phase == "undone")
        back = any((change.path, change.identity.ino) == (verification.path, verification.identity.ino) for change in moves)
        return "because it was moved back once" if back else ""

    def _interrupted_candidates(self) -> tuple[str, ...]:
        """Return what this run's cut saves left at locations that no rank was seen to load from: the script may take it next.

        A location of one save may be that of a temporary file.
        """
        candidates = [
            candidate for candidate in self._locations.listing(candidates=True).candidates if self._discovery.is_repeated(candidate.path)
        ]
        return tuple(
            sorted(
                candidate.path
                for candidate in candidates
                if not self._locations.is_checkpoint(candidate.path) and self._is_interrupted(candidate)
            )
        )

    def _first_saves(self) -> frozenset[str]:
        """Return the checkpoints that are the first at their location, and in whose save the last attempt's ranks died.

        The save was cut off, or no rank that wrote it made a step since: of a directory, each file's save may have ended.
        """
        listed = (candidate.path for candidate in self._locations.listing(candidates=True).candidates)
        paths = dict.fromkeys((*listed, *(path for path, *_ in self._discovery.unfinished())))
        return frozenset(path for path in paths if self._discovery.is_first(path) and self._died_in(path))

    def _died_in(self, path: str) -> bool:
        if any(write.interrupted for write in self._discovery.writes(path)):
            return True
        directory = self._records.job.attempt_dir(self._records.attempt)
        saved_at = save_logs.steps_at(directory, path)
        n_steps = {beat.local_rank: beat.steps for beat in heartbeats.read(directory / "heartbeat")}
        return bool(saved_at) and all(local in n_steps and n_steps[local] <= steps for local, steps in saved_at.items())

    def _torn_first_saves(self) -> tuple[str, ...]:
        """Return the first saves that are proven torn or incomplete, at locations that no rank was seen to load from."""
        judged = (
            self.judged(path)
            for path in sorted(self._died_in_first)
            if self.is_first_save(path) and not self._locations.is_checkpoint(path)
        )
        return tuple(
            verification.path for verification in judged if verification is not None and verification.verdict in ownership.OURS_TO_MOVE
        )

    def _unfinished_directories(self) -> tuple[str, ...]:
        """Return the directories that this run made for a checkpoint and that hold too little for any format to recognise them.

        Nobody lists them, but a script that takes the newest by name takes such a one. The script may have a format of its own. So one is
        returned only where no save in it ended; where one was cut off, at a location of checkpoints; or where a whole one lies next to it.
        """
        listed = self._locations.listing(candidates=True).candidates
        unfinished = [row for row in self._discovery.unfinished() if all(row[0] != candidate.path for candidate in listed)]
        whole = self._whole_patterns({pattern_of(path) for path, *_ in unfinished}, listed) if unfinished else set()
        unresumable = [
            path for path, some, all_ in unfinished if all_ or (some and self._locations.is_checkpoint(path)) or pattern_of(path) in whole
        ]
        for path in unresumable:
            identity = identity_of(path)
            if identity is not None:
                why = "a save began it and did not end"
                self._records.cache.put(Verification(path, identity, Verdict.INCOMPLETE, why, reasons=(why,)))
        return tuple(sorted(unresumable))

    def _why_alone(self, verification: Verification) -> str:
        """Return why a torn checkpoint stays that has no copy and no whole one beside; "" for any other.

        If its save ended, somebody may recover it. If its save was cut off, it goes only once a rank was seen to load from its location.
        """
        path, is_ended = verification.path, verification.verdict is Verdict.BAD and not self._is_interrupted(verification)
        holds_nothing = any(path == directory and all_cut for directory, _, all_cut in self._discovery.unfinished())
        if not is_ended and (holds_nothing or self.is_first_save(path) or self._locations.is_checkpoint(path)):
            return ""
        others = [candidate for candidate in self._locations.listing(candidates=True).candidates if candidate.path != path]
        if self._whole_patterns({pattern_of(path)}, others):
            return ""
        if is_ended:
            return "because its save ended, and no whole checkpoint lies next to it"
        aside = advised_move(path)
        return f"because it has no copy, and no whole checkpoint lies next to it; to have the script begin without it: {aside}"

    def _is_interrupted(self, checkpoint: Candidate | Verification) -> bool:
        return self._records.provenance.of(checkpoint.path, checkpoint.identity).is_interrupted

    def _whole_patterns(self, patterns: Collection[str], candidates: Sequence[Candidate]) -> set[str]:
        """Return those of the patterns of which one of the newest candidates is whole."""
        beside = [candidate for candidate in candidates if pattern_of(candidate.path) in patterns]
        whole: set[str] = set()
        for candidate in self._records.order.order().newest_candidates(beside)[:MOST_BESIDE]:
            known = self._records.cache.get(candidate.path, candidate.identity) or self._verified(candidate)
            if known is not None and known.verdict is Verdict.VERIFIED:
                whole.add(pattern_of(candidate.path))
        return whole

    def _verified(self, candidate: Candidate) -> Verification | None:
        """Read a checkpoint in full; None where its disk gives no byte."""
        path, own = candidate.path, self._trusts(candidate.path)
        device, n_bytes = candidate.identity.dev, candidate.identity.size

        def read(how: ReadOptions) -> Verification:
            return verify(path, reading=how, own=own)

        try:
            verification = self._records.reads.read(path, read, device=device, n_bytes=n_bytes, why="a torn one lies next to it")
        except (DiskSilent, Interrupted):
            return None
        self._records.cache.put(verification)
        return verification


def _guarded(path: str, change: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Make a change. A failure, such as a full disk, is reported and changes nothing in the choice of a checkpoint."""
    try:
        yield from change
    except OSError as error:
        yield path, f"it could not be moved: {error}"
