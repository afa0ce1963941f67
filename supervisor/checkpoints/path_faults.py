"""Looks at the paths that exceptions name, where the job's checkpoints are: what lies there may explain more than the text does.

What we or an earlier attempt did is suspected before the program (docs/explanation/own-checkpoints.md, "What an exception names"):

- the script looks for what we set aside: it is moved back;
- a save meets what an earlier attempt left: that is set aside if it may be, else the command that moves it is named. DCP's error names
  no path: then the save in which the rank was says which one;
- the script looks for a file of the first save, in which an earlier attempt died: what lies there of it is set aside;
- a pointer (a link, or the file in which a framework names its latest) leads nowhere, or to a checkpoint that is not whole.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing import step_names
from checkpointing.discover import find
from checkpointing.io.tree import ReadOptions
from checkpointing.model import Verdict, Verification
from checkpointing.retention import ownership
from checkpointing.retention.aside import advised_move
from checkpointing.verification import identity_of, verify
from supervisor.checkpoints.references import leads_to
from supervisor.core.model import Cause, Claim, Evidence
from supervisor.observe.ranks import heartbeats, save_logs
from supervisor.observe.ranks.path_patterns import checkpoint_path, escaped, pattern_of
from supervisor.observe.ranks.progress_sampler import loads
from supervisor.strategies.situation import LEFTOVER, LEFTOVER_IS_OURS, POINTER, REMEDY, SET_ASIDE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from checkpointing.model import Candidate
    from supervisor.checkpoints.records import CheckpointRecords
    from supervisor.checkpoints.repair import CheckpointRepair

#: How long the reading of files may take; a file unread by then is treated as not whole.
READING_S: Final = 1.0
#: Just before the exception that it led to.
_BEFORE_S: Final = 0.001
_SURE: Final = 0.97
_MOST_EXCEPTIONS, _MOST_PATHS, _MOST_LEVELS, _MOST_READ = 16, 16, 6, 4
_QUOTED: Final = re.compile(r"'([^'\n]{1,4096})'|\"([^\"\n]{1,4096})\"")
_BARE: Final = re.compile(r"(?<![\w./'\"-])(?:\.{0,2}/)?[\w.@%+=~-]+(?:/[\w.@%+=~:-]+)+")
_IN_THE_WAY: Final = re.compile(
    r"File ?[Ee]xists|already exists|[Dd]irectory not empty|IsADirectoryError|NotADirectoryError|Is a directory"
)
#: A file that may name the latest checkpoint: of DeepSpeed, Megatron, verl, detectron2 and scripts.
_TRACKER: Final = re.compile(r"latest|last|newest|current|best", re.IGNORECASE)
_TRACKER_BYTES: Final = 4096
_ATTEMPT_OF_ANOTHER_RUN: Final = "an earlier run"


@dataclass(frozen=True, slots=True)
class _Fault:
    """The fault at a path: a sentence, and the facts for the strategies."""

    name: str
    cause: Cause
    text: str
    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Pointer:
    """A pointer: its own path, the absolute path that it leads to ("" where to itself), and the text of it if it is a file."""

    path: str
    target: str
    text: str = ""


class PathFaults:
    """Explains the exceptions of one attempt by what lies at the paths that they name. It reads files: call it in worker threads."""

    def __init__(self, records: CheckpointRecords, repair: CheckpointRepair | None) -> None:
        """`repair`: None where no rank's save is logged, so that nothing may be moved."""
        self._records, self._repair = records, repair
        self._locations, self._cwd = records.locations, str(records.job.cwd)
        self._until = 0.0

    def evidence(self, attempt: int, facts: Iterable[Evidence]) -> Iterator[Evidence]:
        """Yield a fact for each exception that something at a path explains."""
        self._until = time.monotonic() + READING_S
        raised = [fact for fact in facts if fact.name in {"exception", "last_exception"}][:_MOST_EXCEPTIONS]
        explained = False
        for fact in raised:
            fault = self._fault(fact.text) or self._of_save(attempt, fact)
            if fault is not None:
                explained = True
                yield _evidence(fault, fact)
        if raised and not explained and self._records.script_chooses:
            for path in loads(self._records.job.attempt_dir(attempt), complete=False)[:_MOST_PATHS]:
                fault = self._of_set_aside(path) or self._of_pointer(path)
                if fault is not None:
                    yield _evidence(fault, raised[0])
                    return

    def _fault(self, text: str) -> _Fault | None:
        paths = [self._absolute(path) for path in paths_in(text)]
        in_the_way = _IN_THE_WAY.search(text) is not None
        looks = (self._of_set_aside, *((self._of_leftover,) if in_the_way else (self._of_pointer, self._of_first_save)))
        return next((fault for look in looks for path in paths if (fault := look(path)) is not None), None)

    def _of_save(self, attempt: int, raised: Evidence) -> _Fault | None:
        """Return the fault that the save in which a rank raised meets what lay there, where its exception names no path."""
        if not _IN_THE_WAY.search(raised.text):
            return None
        directory = self._records.job.attempt_dir(attempt)
        ranks = {beat.local_rank: beat.rank for beat in heartbeats.read(directory / "heartbeat")}
        paths = [path for local, path in save_logs.in_a_save(directory) if raised.rank is None or ranks.get(local, local) == raised.rank]
        return next((fault for path in dict.fromkeys(paths) if (fault := self._of_leftover(path)) is not None), None)

    def _of_first_save(self, path: str) -> _Fault | None:
        """Return the fault that a file is missing in the first save, in which the ranks of an earlier attempt died."""
        checkpoint = checkpoint_path(path)
        if self._repair is None or checkpoint == path or not self._repair.is_first_save(checkpoint) or os.path.lexists(path):
            return None
        identity = identity_of(checkpoint)
        if identity is None or not self._records.is_older(checkpoint):
            return None
        why = f"{path[len(checkpoint) + 1 :]} is missing, and the script looks for it: the save did not end"
        self._records.cache.put(Verification(checkpoint, identity, Verdict.INCOMPLETE, why, reasons=(why,)))
        _, stays = self._left(checkpoint)
        fate = (("stays", stays),) if stays else ((LEFTOVER_IS_OURS, "yes"),)
        text = f"{checkpoint} is the rest of the first save, in which {self._left_by(checkpoint)} died: {why}"
        return _Fault("leftover", Cause.CHECKPOINT_LEFTOVER, text, ((LEFTOVER, checkpoint), *fate, (REMEDY, advised_move(checkpoint))))

    def _absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._cwd, path))  # noqa: PTH118 (strings, as a script wrote them)

    def _of_set_aside(self, path: str) -> _Fault | None:
        """Return the fault that the script looks for what we set aside."""
        if os.path.lexists(path):
            return None
        names = {path, os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))}  # noqa: PTH118, PTH119, PTH120 (as above)
        for change in self._records.moves.standing():
            if any(f"{name}/".startswith(f"{change.path}/") for name in names):
                text = f"the script looks for {path}, which was set aside: {change.to} ({change.reason})"
                job = self._records.job
                back = job.settings.undo_command(job.name, change.id)
                fields = ((SET_ASIDE, str(change.id)), ("path", change.path), (REMEDY, back))
                return _Fault("set_aside", Cause.CHECKPOINT_LEFTOVER, text, fields)
        return None

    def _of_leftover(self, path: str) -> _Fault | None:
        """Return the fault that a save meets what lay there before the attempt began."""
        for place in dict.fromkeys((checkpoint_path(path), path)):
            if self._is_save(place) and self._records.is_older(place):  # else the attempt met its own save
                why, stays = self._left(place)
                owner = self._left_by(place)
                text = f"{place} is in the way of the save: {owner} left it ({why})"
                permission = ((LEFTOVER_IS_OURS, "yes"),) if not stays else (("stays", stays),)
                return _Fault("leftover", Cause.CHECKPOINT_LEFTOVER, text, ((LEFTOVER, place), *permission, (REMEDY, advised_move(place))))
        return None

    def _is_save(self, path: str) -> bool:
        """Return whether a path is that of one save, finished or not: never the directory that holds the saves."""
        if not os.path.lexists(path):
            return False
        if step_names.is_temporary(path) or step_names.names_save(path):
            return True
        saved = self._records.discovery is not None and self._records.discovery.is_saved(path)
        return saved or any(path == candidate.path for candidate in self._locations.listing(candidates=True).candidates)

    def _left(self, path: str) -> tuple[str, str]:
        """Return the state of what lies at a path, and why we must not set it aside; "" if we may."""
        if self._repair is None:
            return "it may be of use to somebody", "nobody saw who wrote it"
        verification = self._repair.judged(path, interrupted=self._is_over)
        if verification is None:
            return "it could not be read", "it could not be read"
        stays = self._repair.why_not_aside(verification, time.time_ns())
        leads = "" if stays else leads_to(path)
        whole = verification.verdict is Verdict.VERIFIED
        return ("it is whole" if whole else verification.reason), (f"{leads} leads to it" if leads else stays)

    def _left_by(self, path: str) -> str:
        writes = () if self._records.discovery is None else self._records.discovery.writes(path)
        attempts = [write.attempt for write in writes if write.attempt < self._records.attempt]
        earlier = "an earlier attempt" if any(write.created_by_job for write in writes) else _ATTEMPT_OF_ANOTHER_RUN
        return f"attempt {max(attempts)}" if attempts else earlier

    def _of_pointer(self, path: str) -> _Fault | None:
        """Return the fault of the pointer by which the script came to a path."""
        pointer = self._broken_link(path) or self._lost_name(path) or self._early_pointer(path)
        if pointer is None:
            return None
        whole = self._newest_whole(pointer)
        if not whole and not self._locations.belongs_to_job(pointer.path):
            return None  # no sign that it is one of checkpoints
        fields = ((POINTER, pointer.path), ("path", pointer.target), *(((REMEDY, _remedy(pointer, whole)),) if whole else ()))
        newest = f"; the newest whole one next to it is {whole.rpartition('/')[2]}" if whole else "; no whole one lies next to it"
        return _Fault("pointer", Cause.CHECKPOINT_POINTER, self._pointer_text(pointer) + newest, fields)

    def _broken_link(self, path: str) -> _Pointer | None:
        """Return the link on the way to a path that leads to itself, or to a missing file."""
        for name in _upwards(path):
            if os.path.islink(name) and not os.path.exists(name):  # noqa: PTH110, PTH114 (as above)
                target = os.path.normpath(os.path.join(os.path.dirname(name), os.readlink(name)))  # noqa: PTH115, PTH118, PTH120 (as above)
                return _Pointer(name, "" if target == name or os.path.islink(target) else target)  # noqa: PTH114 (as above)
        return None

    def _lost_name(self, path: str) -> _Pointer | None:
        """Return the file that names a path, or one above it, which is not there."""
        missing = [name for name in _upwards(path) if not os.path.lexists(name)]
        if not missing or not os.path.isdir(os.path.dirname(missing[-1])):  # noqa: PTH112, PTH120 (as above)
            return None
        return _tracker_of(missing[-1])

    def _early_pointer(self, path: str) -> _Pointer | None:
        """Return what leads to a checkpoint that is not whole. If a copy of it is kept, that takes its place."""
        checkpoint = checkpoint_path(os.path.realpath(path))
        if self._repair is None or not self._records.script_chooses or not os.path.exists(checkpoint):  # noqa: PTH110 (as above)
            return None
        leads = leads_to(checkpoint)
        if not leads or not os.path.lexists(leads) or self._records.copies.newest_for(checkpoint) is not None:
            return None
        verification = self._repair.judged(checkpoint, interrupted=self._is_over)
        if verification is None or verification.verdict not in ownership.OURS_TO_MOVE:
            return None
        return _Pointer(leads, checkpoint) if os.path.islink(leads) else _tracker_of(checkpoint)  # noqa: PTH114 (as above)

    def _pointer_text(self, pointer: _Pointer) -> str:
        if not pointer.target:
            return f"{pointer.path} leads to itself"
        verb = "names" if pointer.text else "leads to"
        if not os.path.exists(pointer.target):  # noqa: PTH110 (as above)
            return f"{pointer.path} {verb} {pointer.target}, which is not there"
        return f"{pointer.path} {verb} {pointer.target}, which is not whole"

    def _newest_whole(self, pointer: _Pointer) -> str:
        """Return the newest whole checkpoint beside a pointer, of the kind that it led to; "" where none is known."""
        directory = os.path.dirname(pointer.path)  # noqa: PTH120 (as above)
        beside = [candidate for candidate in find(escaped(directory)).candidates if candidate.path not in {pointer.path, pointer.target}]
        like = [candidate for candidate in beside if pointer.target and pattern_of(candidate.path) == pattern_of(pointer.target)]
        newest = self._records.order.order().newest_candidates(like or beside)[:_MOST_READ]
        return next((candidate.path for candidate in newest if self._is_whole(candidate)), "")

    def _is_whole(self, candidate: Candidate) -> bool:
        records, content = self._records, (candidate.path, candidate.identity)
        if records.cache.get(*content) is None and records.manifests.of(*content) is not None:
            return True
        verification = self._judged(candidate)
        return verification is not None and verification.verdict is Verdict.VERIFIED

    def _judged(self, candidate: Candidate) -> Verification | None:
        if self._repair is not None:
            return self._repair.judged(candidate.path, interrupted=self._is_over)
        return verify(candidate.path, reading=ReadOptions(interrupted=self._is_over)) if identity_of(candidate.path) is not None else None

    def _is_over(self) -> bool:
        return time.monotonic() > self._until


def paths_in(text: str) -> tuple[str, ...]:
    """Return the possible paths in the text of an exception: quoted parts, and words with a slash."""
    quoted = [match[1] or match[2] for match in _QUOTED.finditer(text)]
    bare = [match[0].rstrip(".,:;") for match in _BARE.finditer(_QUOTED.sub(" ", text))]
    return tuple(dict.fromkeys(path for path in (*quoted, *bare) if path.strip() and "\0" not in path))[:_MOST_PATHS]


def _upwards(path: str) -> Iterator[str]:
    """Yield a path and some directories above it."""
    for _ in range(_MOST_LEVELS):
        if path in {"", "/"}:
            return
        yield path
        path = path.rpartition("/")[0]


def _tracker_of(path: str) -> _Pointer | None:
    """Return the file beside a checkpoint that names it: by its name, its path, or the number in its name."""
    directory, _, name = path.rpartition("/")
    numbers = {int(number) for number in re.findall(r"\d{1,18}", name)}
    try:
        with os.scandir(directory) as entries:
            small = [
                entry.path
                for entry in entries
                if _TRACKER.search(entry.name) and entry.is_file() and entry.stat().st_size <= _TRACKER_BYTES
            ]
        for file in sorted(small):
            with open(file, encoding="utf-8", errors="replace") as source:  # noqa: PTH123 (as above)
                content = source.read(_TRACKER_BYTES)
            text = content.strip()
            if text.rstrip("/").rpartition("/")[2] == name or (text.isascii() and text.isdigit() and int(text) in numbers):
                return _Pointer(file, path, content)
    except OSError:
        return None
    return None


def _remedy(pointer: _Pointer, whole: str) -> str:
    """Return the command that makes a pointer lead to a whole checkpoint."""
    directory = pointer.path.rpartition("/")[0]
    if not pointer.text:
        return shlex.join(["ln", "-sfn", os.path.relpath(whole, directory), pointer.path])
    named, text = whole.rpartition("/")[2], pointer.text.strip()
    if text.isdigit():
        numbers = re.findall(r"\d{1,18}", named)
        words = str(int(numbers[-1])) if numbers else named
    else:
        head = text.rstrip("/").rpartition("/")
        words = f"{head[0]}{head[1]}{named}"
    prints = ("echo",) if pointer.text.endswith("\n") else ("printf", "%s")  # a script may take each byte of it
    return f"{shlex.join([*prints, words])} > {shlex.quote(pointer.path)}"


def _evidence(fault: _Fault, raised: Evidence) -> Evidence:
    t = raised.t - _BEFORE_S if raised.t else 0.0
    return Evidence("checkpoint", fault.name, fault.text, raised.rank, t, fields=fault.fields, claim=Claim(fault.cause, _SURE))
