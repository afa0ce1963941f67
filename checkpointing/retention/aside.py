"""Sets a file of the user's aside, out of the way of the script, so that it can be moved back.

What is set aside lies in ONE directory, `.supervise-aside`, beside the directory that the script lists: no listing, pattern or walk of the
script meets it, and its name there holds no number, so that no parser of steps takes it for one. It lies inside the listed directory only
where the one above is another file system, or is not ours to write; that is reported.

The directory's index is the record (docs/reference/checkpoint-format.md, "What was set aside"). Each change is written down and synced
before it is made, replaces nothing, and `undo` reverses it. `checkpoints/aside.jsonl` in the state directory only names the directories of
the job. A command of another process, another job or another node may use the same directory at the same time, under the index's lock. If
the index cannot be written, OSError is raised and nothing was changed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import stat
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from checkpointing import step_names
from checkpointing.io import durable, staging
from checkpointing.io.tree import Tree
from checkpointing.model import Identity
from checkpointing.retention import ownership
from checkpointing.verification import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

    from checkpointing.model import Verification

INDEX: Final = "index.jsonl"
FILE_NAME: Final = "aside.jsonl"
_VERSION: Final = 1
_MOST_NAMES: Final = 1000
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
#: What may be another way inside the listed directory: the one above belongs to somebody else, is mounted elsewhere, or is read only.
ELSEWHERE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV, errno.ELOOP, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class MovedFile:
    """The result of a request. `to`: the new place; "" with the `reason` if nothing was moved.

    `note`: why it lies inside the directory that the script lists; "" where it lies beside it.
    """

    to: str
    reason: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class AsideChange:
    """A recorded change: `kind` is "moved" (path -> to) or "put_back" (at path, made from the copy `to`).

    `directory`: whose index has it; `job`: whose supervisor made it.
    """

    id: int
    kind: str
    path: str
    to: str
    identity: Identity
    attempt: int
    reason: str
    t: float
    phase: str = "intent"
    job: str = ""
    directory: str = ""


@dataclass(frozen=True, slots=True)
class Undone:
    """One change to be reversed. `problem`: why it was not; "" if it was."""

    change: AsideChange
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Place:
    """A directory for what is set aside. `note`: why it lies inside the directory that the script lists."""

    path: str
    note: str = ""


class AsideRecord:
    """Sets files of one job aside, and moves them back."""

    def __init__(self, directory: str, job: str = "") -> None:
        """`directory`: the job's `checkpoints/` in its state directory, which need not exist yet. `job`: its name."""
        self._directory, self._job = directory, job
        self._file = f"{directory}/{FILE_NAME}"

    def move(self, checkpoint: Verification, attempt: int, seen: Mapping[str, Identity], *, ranks_alive: bool) -> MovedFile:
        """Set a torn checkpoint aside, if the ownership rule allows that (see ownership.why_not)."""
        why = ownership.why_not(checkpoint, seen, ranks_alive=ranks_alive)
        return MovedFile("", why) if why else self._move(checkpoint, attempt)

    def move_rejected(self, checkpoint: Verification, attempt: int, seen: Mapping[str, Identity], *, ranks_alive: bool) -> MovedFile:
        """Set a whole checkpoint aside that no attempt resumes from any more, if this job was seen to write all of it."""
        why = ownership.A_RANK_LIVES if ranks_alive else ownership.not_written(checkpoint.path, checkpoint.identity, seen)
        return MovedFile("", why) if why else self._move(checkpoint, attempt)

    def _move(self, checkpoint: Verification, attempt: int) -> MovedFile:
        change = AsideChange(0, "moved", checkpoint.path, "", checkpoint.identity, attempt, checkpoint.reason, time.time())
        for place, is_last in in_turn(places(checkpoint.path)):
            try:
                return self._move_to(place, change)
            except OSError as error:
                if is_last or error.errno not in ELSEWHERE:
                    raise
        return MovedFile("", "there is no place for it")

    def _move_to(self, place: _Place, change: AsideChange) -> MovedFile:
        """Move it to one place. Raises OSError where that place will not do."""
        with self._index(place.path) as index:
            number = self._next_id(index)
            to = _free_name(f"{place.path}/torn-", number)
            if to is None:
                return MovedFile("", f"there is no free name in {place.path}")
            change = _intend(index, replace(change, id=number, to=to, job=self._job, directory=place.path))
            try:
                durable.rename_exclusive(change.path, to)
                durable.sync_directory(os.path.dirname(change.path))  # noqa: PTH120 -- paths are plain strings throughout the package
                durable.sync_directory(place.path)
            except OSError as error:
                # another's file may have the name. If it is the same file, only the sync failed, or another node was first
                if isinstance(error, FileExistsError) or identity_of(to) != change.identity:
                    _conclude(index, change, "failed")
                    if error.errno == errno.EXDEV:
                        raise
                    return MovedFile("", f"it could not be renamed: {error.strerror}")
            _conclude(index, change, "done")
        return MovedFile(to, note=place.note)

    def put(self, temporary: str, path: str, copy: str, attempt: int, reason: str) -> str:
        """Rename a temporary file to `path`, which must be free; return "" or why not. The index records it like a move."""
        identity = identity_of(temporary)
        if identity is None:
            return "what was to be put there is gone"
        change = AsideChange(0, "put_back", path, copy, identity, attempt, reason, time.time(), job=self._job)
        for place, is_last in in_turn(places(path)):
            try:
                with self._index(place.path) as index:
                    change = _intend(index, replace(change, id=self._next_id(index), directory=place.path))
                    return _put(index, change, temporary)
            except OSError as error:
                if is_last or error.errno not in ELSEWHERE:
                    raise
        return "there is no place for the record of it"

    def directories(self) -> tuple[str, ...]:
        """Return the directories in which something of the job was set aside."""
        try:
            with os.fdopen(durable.open_regular(self._file), "rb") as source:
                lines = source.read().splitlines()
        except (FileNotFoundError, NotADirectoryError):  # nothing could be written there
            return ()
        known: list[str] = []
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                known.append(str(json.loads(line)["directory"]))
        return tuple(dict.fromkeys(known))

    def changes(self) -> tuple[AsideChange, ...]:
        """Return every recorded change of the job, oldest first, each in its last phase."""
        return tuple(
            sorted((change for directory in self.directories() for change in self._recorded(directory)), key=lambda change: change.id)
        )

    def standing(self) -> tuple[AsideChange, ...]:
        """Return what was set aside and lies there, oldest first."""
        return tuple(
            change for change in self.changes() if change.kind == "moved" and change.phase == "done" and os.path.lexists(change.to)
        )

    def directory_of(self, path: str) -> str:
        """Return the directory in which what was set aside last from a path lies; "" where nothing was."""
        return next((change.directory for change in reversed(self.standing()) if change.path == path), "")

    def undo(self, change_id: int | None = None) -> tuple[Undone, ...]:
        """Reverse one change, or all that stand, the last one first. The job must not be running."""
        answers: list[Undone] = []
        for change in reversed(self.changes()):
            if change.phase not in ("done", "intent") or (change_id is not None and change.id != change_id):
                continue
            with self._index(change.directory) as index:
                problem = _reverse_move(change) if change.kind == "moved" else _reverse_put(change)
                if not problem:
                    _conclude(index, change, "undone")
            answers.append(Undone(change, problem))
        return tuple(answers)

    def _recorded(self, directory: str) -> Iterator[AsideChange]:
        try:
            with os.fdopen(durable.open_regular(f"{directory}/{INDEX}"), "rb") as index:
                yield from (replace(change, directory=directory) for change in _read(index) if change.job == self._job)
        except (FileNotFoundError, NotADirectoryError):  # a person removed it, with what was in it
            return

    def _next_id(self, index: BinaryIO) -> int:
        """Return a number that no change of this index has, nor one of the job elsewhere."""
        elsewhere: tuple[AsideChange, ...] = ()
        with contextlib.suppress(OSError):  # a directory that cannot be read now: its numbers may come twice
            elsewhere = self.changes()
        return max((change.id for change in (*_read(index), *elsewhere)), default=0) + 1

    @contextlib.contextmanager
    def _index(self, directory: str) -> Iterator[BinaryIO]:
        """Open and lock the index of a directory, which is made where there is none, and known to the job from now on. Raises OSError."""
        make_place(directory)
        path = f"{directory}/{INDEX}"
        is_new = not os.path.lexists(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        with os.fdopen(fd, "r+b") as index:
            durable.lock(index.fileno(), wait=True)  # without locks only another process could mix its lines with ours
            if is_new:
                durable.sync_directory(directory)
            if directory not in self.directories():
                durable.make_directory(self._directory)
                durable.append(self._file, json.dumps({"version": _VERSION, "directory": directory}).encode("ascii"))
            yield index


def make_place(directory: str) -> None:
    """Make a directory for what is set aside, where there is none. Raises OSError, also for a directory of another user or a link."""
    durable.make_directory(directory)
    st = os.lstat(directory)
    # NFS may give root's files to another user, and the directory above with them
    owners = {os.geteuid(), os.stat(os.path.dirname(directory)).st_uid}  # noqa: PTH116, PTH120 -- as above
    if not stat.S_ISDIR(st.st_mode) or st.st_uid not in owners:
        raise PermissionError(errno.EPERM, "it is not a directory of this user", directory)


def places(path: str) -> tuple[_Place, ...]:
    """Return where a checkpoint may be set aside: beside the directory that a script lists, else inside it."""
    listed = os.path.dirname(path.rstrip("/"))  # noqa: PTH120 -- paths are plain strings throughout the package
    while step_names.names_save(listed) and listed.count("/") > 1:  # step-60/model.pt: the script lists the directory above
        listed = os.path.dirname(listed)  # noqa: PTH120 -- as above
    above = os.path.dirname(listed)  # noqa: PTH120 -- as above
    inside = f"{listed.rstrip('/')}/{step_names.ASIDE}"
    if above == listed:
        return (_Place(inside, f"{listed} has no directory above it"),)
    try:
        is_mount = os.stat(above).st_dev != os.stat(listed).st_dev  # noqa: PTH116 -- as above
    except OSError:
        is_mount = True
    if is_mount:
        return (_Place(inside, f"{above} is another file system than {listed}"),)
    beside = f"{above.rstrip('/')}/{step_names.ASIDE}"
    return _Place(beside), _Place(inside, f"{beside} cannot be used by this user")


def advised_move(path: str) -> str:
    """Return the command with which a person sets a checkpoint aside, at the place where we would."""
    candidates = places(path)
    place = next((candidate for candidate in candidates[:-1] if _may_write(candidate.path)), candidates[-1])
    to = _free_name(f"{place.path}/torn-", 1) or f"{place.path}/torn"
    make = "" if os.path.isdir(place.path) else f"{shlex.join(['mkdir', '-p', place.path])} && "  # noqa: PTH112 -- as above
    return make + shlex.join(["mv", path, to])


def size_of(path: str) -> int:
    """Return the bytes of a file, or of all files of a directory; 0 where that cannot be read."""
    try:
        return Tree(path).identity.size if os.path.isdir(path) else os.lstat(path).st_size  # noqa: PTH112 -- as above
    except OSError:
        return 0


def in_turn(candidates: tuple[_Place, ...]) -> Iterator[tuple[_Place, bool]]:
    """Yield each place, and whether it is the last."""
    for number, place in enumerate(candidates, 1):
        yield place, number == len(candidates)


def _may_write(directory: str) -> bool:
    there = directory if os.path.isdir(directory) else os.path.dirname(directory)  # noqa: PTH112, PTH120 -- as above
    return os.access(there, os.W_OK | os.X_OK)


def _put(index: BinaryIO, change: AsideChange, temporary: str) -> str:
    try:
        durable.rename_exclusive(temporary, change.path)
        durable.sync_directory(os.path.dirname(change.path))  # noqa: PTH120 -- as above
    except OSError as error:
        if identity_of(change.path) != change.identity:
            _conclude(index, change, "failed")
            return f"it could not be put there: {error.strerror}"
    _conclude(index, change, "done")
    return ""


def _intend(index: BinaryIO, change: AsideChange) -> AsideChange:
    _append(index, change)
    return change


def _conclude(index: BinaryIO, change: AsideChange, phase: str) -> None:
    # this line may be missing: if only the intent stands, the file system shows the rest
    with contextlib.suppress(OSError):
        _append(index, replace(change, phase=phase))


def _reverse_move(change: AsideChange) -> str:
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


def _reverse_put(change: AsideChange) -> str:
    """Remove the file that we put there, if unchanged. If the copy it came from is gone, rename it instead: it may be the only good one."""
    now = identity_of(change.path)
    if now is None:
        return "" if not os.path.lexists(change.path) else f"{change.path} could not be read"
    if now != change.identity:
        return "" if change.phase == "intent" else f"{change.path} was written since"
    try:
        if not os.path.lexists(change.to):
            kept = _free_name(f"{change.directory}/kept-", change.id)
            if kept is None:
                return f"there is no free name in {change.directory}"
            durable.rename_exclusive(change.path, kept)
        else:
            staging.remove(change.path)
        durable.sync_directory(os.path.dirname(change.path))  # noqa: PTH120 -- as above
    except OSError as error:
        return f"{change.path} could not be taken away: {error.strerror}"
    return ""


def _free_name(stem: str, number: int) -> str | None:
    """Return the first free one of `stem`a, `stem`b, …, `stem`z, `stem`aa, … from the letters of `number` on: no digit is in it."""
    candidates = (f"{stem}{_letters(at)}" for at in range(number, number + _MOST_NAMES))
    return next((candidate for candidate in candidates if not os.path.lexists(candidate)), None)


def _letters(number: int) -> str:
    text = ""
    while number > 0:
        number, at = divmod(number - 1, len(_LETTERS))
        text = _LETTERS[at] + text
    return text


def _append(index: BinaryIO, change: AsideChange) -> None:
    row = asdict(change)
    del row["directory"]
    row = {"version": _VERSION, "id": row.pop("id"), "phase": row.pop("phase"), **row.pop("identity"), **row}
    durable.append_to(index.fileno(), json.dumps(row).encode("ascii"))


def _read(index: BinaryIO) -> tuple[AsideChange, ...]:
    """Return the changes of all jobs, each in its last phase; unreadable lines are skipped."""
    index.seek(0)
    last: dict[tuple[str, int], AsideChange] = {}
    for line in index:
        try:
            change = _change(json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue
        last[change.job, change.id] = change
    return tuple(last.values())


def _change(row: dict[str, Any]) -> AsideChange:
    return AsideChange(
        id=int(row["id"]),
        kind=str(row["kind"]),
        path=str(row["path"]),
        to=str(row["to"]),
        identity=Identity(int(row["dev"]), int(row["ino"]), int(row["size"]), int(row["mtime_ns"])),
        attempt=int(row["attempt"]),
        reason=str(row["reason"]),
        t=float(row["t"]),
        phase=str(row["phase"]),
        job=str(row["job"]),
    )
