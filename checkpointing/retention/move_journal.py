"""Renames a torn file of the user's, out of the way of a script that resumes by itself, so that it can be moved back.

Each change is written down and synced before it is made (docs/reference/checkpoint-format.md, "The journal of what was moved"), replaces
nothing, and `undo` reverses it. There is one `setaside.jsonl` for each job and node, in the state directory's `checkpoints/`; a command of
another process may use it at the same time, under the file's lock. If the journal cannot be written, OSError is raised and nothing was
changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from checkpointing.io import durable, staging
from checkpointing.model import Identity
from checkpointing.retention import ownership
from checkpointing.verification import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

    from checkpointing.model import Verification

FILE_NAME: Final = "setaside.jsonl"
_VERSION: Final = 1
_MOST_NAMES: Final = 1000


@dataclass(frozen=True, slots=True)
class MovedFile:
    """The result of a request. `to`: the new name; "" with the `reason` if nothing was moved."""

    to: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MoveChange:
    """A recorded change: `kind` is "moved" (path -> to) or "put_back" (at path, made from the copy `to`)."""

    id: int
    kind: str
    path: str
    to: str
    identity: Identity
    attempt: int
    reason: str
    t: float
    phase: str = "intent"


@dataclass(frozen=True, slots=True)
class Undone:
    """One change to be reversed. `problem`: why it was not; "" if it was."""

    change: MoveChange
    problem: str = ""


class MoveJournal:
    """Moves aside, and back."""

    def __init__(self, directory: str) -> None:
        """Use the journal in `directory`, which need not exist yet."""
        self._directory = directory
        self._file = f"{directory}/{FILE_NAME}"

    def move(self, found: Verification, attempt: int, seen: Mapping[str, Identity], *, ranks_alive: bool) -> MovedFile:
        """Rename a torn checkpoint in its directory, if the ownership rule allows that (see ownership.why_not).

        A script finds its files by their end (`*.pt`), and its directories by their beginning (`checkpoint-*`). So a file becomes
        NAME.torn-ATTEMPT, and a directory .NAME.torn-ATTEMPT.
        """
        why = ownership.why_not(found, seen, ranks_alive=ranks_alive)
        if why:
            return MovedFile("", why)
        directory, _, name = found.path.rstrip("/").rpartition("/")
        is_directory = os.path.isdir(found.path)  # noqa: PTH112 -- paths are plain strings throughout the package
        to = _free_name(f"{directory}/{'.' if is_directory else ''}{name}.torn-{attempt}")
        if to is None:
            return MovedFile("", "there is no free name beside it")
        with self._journal() as journal:
            change = self._intend(journal, MoveChange(0, "moved", found.path, to, found.identity, attempt, found.reason, time.time()))
            try:
                durable.rename_exclusive(found.path, to)
                durable.sync_directory(os.path.dirname(to))  # noqa: PTH120 -- paths are plain strings throughout the package
            except OSError as error:
                # another's file may have the name. If it is the same file, only the sync failed, or another node was first
                if isinstance(error, FileExistsError) or identity_of(to) != found.identity:
                    self._conclude(journal, change, "failed")
                    return MovedFile("", f"it could not be renamed: {error.strerror}")
            self._conclude(journal, change, "done")
        return MovedFile(to)

    def put(self, temporary: str, path: str, copy: str, attempt: int, reason: str) -> str:
        """Rename a temporary file to `path`, which must be free; return "" or why not. The journal records it like a move."""
        identity = identity_of(temporary)
        if identity is None:
            return "what was to be put there is gone"
        with self._journal() as journal:
            change = self._intend(journal, MoveChange(0, "put_back", path, copy, identity, attempt, reason, time.time()))
            try:
                durable.rename_exclusive(temporary, path)
                durable.sync_directory(os.path.dirname(path))  # noqa: PTH120 -- as above
            except OSError as error:
                if identity_of(path) != identity:
                    self._conclude(journal, change, "failed")
                    return f"it could not be put there: {error.strerror}"
            self._conclude(journal, change, "done")
        return ""

    def changes(self) -> tuple[MoveChange, ...]:
        """Return every recorded change, oldest first, each in its last phase."""
        try:
            with os.fdopen(durable.open_regular(self._file), "rb") as journal:
                return tuple(_read(journal).values())
        except FileNotFoundError:
            return ()

    def undo(self, change_id: int | None = None) -> tuple[Undone, ...]:
        """Reverse one change, or all that stand, the last one first. The job must not be running."""
        if change_id is None and not self.changes():
            return ()
        with self._journal() as journal:
            standing = [change for change in _read(journal).values() if change.phase in ("done", "intent")]
            answers: list[Undone] = []
            for change in reversed(standing):
                if change_id is not None and change.id != change_id:
                    continue
                problem = _reverse_move(change) if change.kind == "moved" else _reverse_put(change)
                if not problem:
                    self._conclude(journal, change, "undone")
                answers.append(Undone(change, problem))
        return tuple(answers)

    @contextlib.contextmanager
    def _journal(self) -> Iterator[BinaryIO]:
        durable.make_directory(self._directory)
        is_new = not os.path.lexists(self._file)
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "r+b") as journal:
            durable.lock(journal.fileno(), wait=True)  # without locks only a command of another process could mix its lines with ours
            if is_new:
                durable.sync_directory(self._directory)
            yield journal

    def _intend(self, journal: BinaryIO, change: MoveChange) -> MoveChange:
        change = replace(change, id=max(_read(journal), default=0) + 1)
        _append(journal, change)
        return change

    def _conclude(self, journal: BinaryIO, change: MoveChange, phase: str) -> None:
        # this line may be missing: if only the intent stands, the file system shows the rest
        with contextlib.suppress(OSError):
            _append(journal, replace(change, phase=phase))


def _reverse_move(change: MoveChange) -> str:
    if not os.path.lexists(change.to):
        return "" if change.phase == "intent" and os.path.lexists(change.path) else f"{change.to} is not there any more"
    try:
        # by its inode alone: a device number may change at a restart, and a person may change files in the directory
        if os.lstat(change.to).st_ino != change.identity.ino:
            return "" if change.phase == "intent" else f"{change.to} is not what was moved there"
        durable.rename_exclusive(change.to, change.path)
        durable.sync_directory(os.path.dirname(change.path))  # noqa: PTH120 -- as above
    except FileExistsError:
        return f"{change.path} was written since: move it away first"
    except OSError as error:
        return f"{change.to} could not be renamed: {error.strerror}"
    return ""


def _reverse_put(change: MoveChange) -> str:
    """Remove the file that we put there, if unchanged. If the copy it came from is gone, rename it instead: it may be the only good one."""
    now = identity_of(change.path)
    if now is None:
        return "" if not os.path.lexists(change.path) else f"{change.path} could not be read"
    if now != change.identity:
        return "" if change.phase == "intent" else f"{change.path} was written since"
    try:
        if not os.path.lexists(change.to):
            kept = _free_name(f"{change.path.rstrip('/')}.kept-{change.attempt}")
            if kept is None:
                return f"there is no free name beside {change.path}"
            durable.rename_exclusive(change.path, kept)
        else:
            staging.remove(change.path)
        durable.sync_directory(os.path.dirname(change.path))  # noqa: PTH120 -- as above
    except OSError as error:
        return f"{change.path} could not be taken away: {error.strerror}"
    return ""


def _free_name(name: str) -> str | None:
    """Return `name`, or the first of `name`.2, `name`.3, … that is free."""
    for number in range(1, _MOST_NAMES):
        candidate = name if number == 1 else f"{name}.{number}"
        if not os.path.lexists(candidate):
            return candidate
    return None


def _append(journal: BinaryIO, change: MoveChange) -> None:
    row = asdict(change)
    row = {"version": _VERSION, "id": row.pop("id"), "phase": row.pop("phase"), **row.pop("identity"), **row}
    durable.append_to(journal.fileno(), json.dumps(row).encode("ascii"))


def _read(journal: BinaryIO) -> dict[int, MoveChange]:
    """Return the changes by id, each in its last phase; unreadable lines are skipped."""
    journal.seek(0)
    found: dict[int, MoveChange] = {}
    for line in journal:
        try:
            change = _change(json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue
        found[change.id] = change
    return found


def _change(row: dict[str, Any]) -> MoveChange:
    return MoveChange(
        id=int(row["id"]),
        kind=str(row["kind"]),
        path=str(row["path"]),
        to=str(row["to"]),
        identity=Identity(int(row["dev"]), int(row["ino"]), int(row["size"]), int(row["mtime_ns"])),
        attempt=int(row["attempt"]),
        reason=str(row["reason"]),
        t=float(row["t"]),
        phase=str(row["phase"]),
    )
