"""Sets a file of the user's aside, out of the way of the script, so that it can be moved back.

Files that are set aside lie in ONE directory, `.supervise-aside`, beside the directory that the script lists: no listing, pattern or walk
of the script meets it, and its name there holds no number, so that no parser of steps takes it for one. It lies inside the listed directory
only where the one above is another file system, or this user may not write it; that is reported.

The catalogue of the job is the record: each change is a row of its table `moved`, written and synced before the change is made. A change
replaces nothing, and `undo` reverses it. Other jobs and nodes may use the same directory at the same time. If the row cannot be written,
OSError is raised and nothing was changed.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from checkpointing import step_names
from checkpointing.io import durable, staging
from checkpointing.io.row_file import RowTable
from checkpointing.io.tree import Tree
from checkpointing.model import Identity
from checkpointing.retention import ownership
from checkpointing.verification import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from checkpointing.catalogue import CheckpointCatalogue
    from checkpointing.model import Verification

_MOST_NAMES: Final = 1000
_MOST_RACES: Final = 26  # names that other jobs took between our look and our rename
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
#: Errors for which the listed directory may serve: the one above belongs to somebody else, is mounted elsewhere, or is read only.
_ELSEWHERE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV, errno.ELOOP, errno.ENOTDIR})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MovedFile:
    """The result of a request. `to`: the new place; "" with the `reason` if nothing was moved.

    `note`: why it lies inside the directory that the script lists; "" where it lies beside that directory.
    """

    to: str
    reason: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class AsideChange:
    """A recorded change."""

    id: int  # counts the job's changes on this node from 1
    kind: str  # `moved`: the user's file was renamed; `put_back`: our copy was put in its place
    path: str  # from where it was moved, or where it was put
    to: str  # to where, or the copy that it was made from
    identity: Identity  # of the file that was moved, or put there
    attempt: int  # after which attempt
    reason: str  # why
    t: float  # wall time in seconds
    # `intent` before the change, then `done` or `failed`; `undone` when it was reversed. With the intent alone the file system shows
    # whether it was made
    phase: str = "intent"


#: By number: each file that was set aside, or put back.
MOVED: Final = RowTable("moved", AsideChange, lambda row: str(row.id))


@dataclass(frozen=True, slots=True)
class Undone:
    """One change to be reversed. `problem`: why it was not; "" if it was."""

    change: AsideChange
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AsidePlace:
    """A directory for files that are set aside. `note`: why it lies inside the directory that the script lists."""

    path: str
    note: str = ""


class AsideRecord:
    """Sets files of one job aside, and moves them back."""

    def __init__(self, catalogue: CheckpointCatalogue) -> None:
        """`catalogue`: of the job on this node; only its writer may change anything."""
        self._catalogue = catalogue

    def move(self, checkpoint: Verification, attempt: int, seen: Mapping[str, Identity], *, ranks_alive: bool) -> MovedFile:
        """Set a torn checkpoint aside, if the ownership rule allows that (see ownership.why_not)."""
        why = ownership.why_not(checkpoint, seen, ranks_alive=ranks_alive)
        return MovedFile("", why) if why else self._move(checkpoint, attempt)

    def move_rejected(self, checkpoint: Verification, attempt: int, seen: Mapping[str, Identity], *, ranks_alive: bool) -> MovedFile:
        """Set a whole checkpoint aside that no attempt resumes from any more, if this job was seen to write all of it."""
        why = ownership.A_RANK_LIVES if ranks_alive else ownership.not_written(checkpoint.path, checkpoint.identity, seen)
        return MovedFile("", why) if why else self._move(checkpoint, attempt)

    def _move(self, checkpoint: Verification, attempt: int) -> MovedFile:
        change = AsideChange(self._next_id(), "moved", checkpoint.path, "", checkpoint.identity, attempt, checkpoint.reason, time.time())
        return at_place(checkpoint.path, lambda place: self._move_to(place, change))

    def _move_to(self, place: AsidePlace, change: AsideChange) -> MovedFile:
        """Move it to one place. Raises OSError where that place will not do."""
        for race in range(_MOST_RACES):
            to = _free_name(f"{place.path}/torn-", change.id)
            if to is None:
                return MovedFile("", f"there is no free name in {place.path}")
            change = replace(change, to=to)
            self._intend(change)
            try:
                durable.rename_exclusive(change.path, to)
                durable.sync_directory(os.path.dirname(change.path))  # noqa: PTH120 -- paths are plain strings throughout the package
                durable.sync_directory(place.path)
            except OSError as error:
                # another's file may have the name. If it is the same file, only the sync failed, or another node was first
                is_taken = isinstance(error, FileExistsError)
                if is_taken and race + 1 < _MOST_RACES:
                    continue
                if is_taken or identity_of(to) != change.identity:
                    self._conclude(change, "failed")
                    if error.errno == errno.EXDEV:
                        raise
                    return MovedFile("", f"it could not be renamed: {error.strerror}")
            self._conclude(change, "done")
            break
        return MovedFile(change.to, note=place.note)

    def put(self, temporary: str, path: str, copy: str, attempt: int, reason: str) -> str:
        """Rename a temporary file to `path`, which must be free; return "" or why not. It is recorded like a move."""
        identity = identity_of(temporary)
        if identity is None:
            return "its replacement is gone"
        change = AsideChange(self._next_id(), "put_back", path, copy, identity, attempt, reason, time.time())
        self._intend(change)
        try:
            durable.rename_exclusive(temporary, path)
            durable.sync_directory(os.path.dirname(path))  # noqa: PTH120 -- as above
        except OSError as error:
            if identity_of(path) != identity:
                self._conclude(change, "failed")
                return f"it could not be put there: {error.strerror}"
        self._conclude(change, "done")
        return ""

    def changes(self) -> tuple[AsideChange, ...]:
        """Return every recorded change of the job, oldest first, each in its last phase."""
        return tuple(sorted(self._catalogue.each(MOVED), key=lambda change: change.id))

    def standing(self) -> tuple[AsideChange, ...]:
        """Return the files that were set aside and lie there, oldest first."""
        return tuple(
            change for change in self.changes() if change.kind == "moved" and change.phase == "done" and os.path.lexists(change.to)
        )

    def directory_of(self, path: str) -> str:
        """Return the directory of the file that was last set aside from a path; "" where none was."""
        last = next((change for change in reversed(self.standing()) if change.path == path), None)
        return "" if last is None else os.path.dirname(last.to)  # noqa: PTH120 -- as above

    def undo(self, change_id: int | None = None) -> tuple[Undone, ...]:
        """Reverse one change, or all that stand, the last one first. The job must not be running. Raises OSError."""
        answers: list[Undone] = []
        if self._catalogue.unreadable:
            raise OSError(errno.EIO, self._catalogue.unreadable)
        for change in reversed(self.changes()):
            if change.phase not in ("done", "intent") or (change_id is not None and change.id != change_id):
                continue
            self._intend(change)  # nothing is moved back that could not be recorded
            problem = _reverse_move(change) if change.kind == "moved" else _reverse_put(change)
            if not problem:
                self._conclude(change, "undone")
            answers.append(Undone(change, problem))
        return tuple(answers)

    def _next_id(self) -> int:
        return max((change.id for change in self._catalogue.each(MOVED)), default=0) + 1

    def _intend(self, change: AsideChange) -> None:
        """Record a change that is about to be made. Raises OSError where that failed, and the change must not be made."""
        if not self._catalogue.put(MOVED, change):
            why = self._catalogue.not_written or f"another process writes the catalogue: {self._catalogue.file}"
            if change.phase == "intent":
                self._catalogue.remove(MOVED, MOVED.key(change))
            raise OSError(errno.EIO, why)

    def _conclude(self, change: AsideChange, phase: str) -> None:
        # this row may be missing after a kill: if only the intent is there, the file system shows the rest
        self._catalogue.put(MOVED, replace(change, phase=phase))


def at_place(path: str, work: Callable[[AsidePlace], T]) -> T:
    """Do `work` at the first place that is fit for a file set aside from a path, and return its answer. Raises OSError."""
    *beside, inside = places(path)
    for place in beside:
        try:
            make_place(place.path)
            return work(place)
        except OSError as error:
            if error.errno not in _ELSEWHERE:
                raise
    make_place(inside.path)
    return work(inside)


def make_place(directory: str) -> None:
    """Make a directory for files set aside, where there is none. Raises OSError, also for a directory of another user or a link."""
    durable.make_directory(directory)
    st = os.lstat(directory)
    # NFS may give root's files to another user, and the directory above with them
    owners = {os.geteuid(), os.stat(os.path.dirname(directory)).st_uid}  # noqa: PTH116, PTH120 -- as above
    if not stat.S_ISDIR(st.st_mode) or st.st_uid not in owners:
        raise PermissionError(errno.EPERM, "it is not a directory of this user", directory)


def places(path: str) -> tuple[AsidePlace, ...]:
    """Return where a checkpoint may be set aside: beside the directory that a script lists, else inside it."""
    listed = os.path.dirname(path.rstrip("/"))  # noqa: PTH120 -- paths are plain strings throughout the package
    while step_names.names_save(listed) and listed.count("/") > 1:  # step-60/model.pt: the script lists the directory above
        listed = os.path.dirname(listed)  # noqa: PTH120 -- as above
    above = os.path.dirname(listed)  # noqa: PTH120 -- as above
    inside = f"{listed.rstrip('/')}/{step_names.ASIDE}"
    if above == listed:
        return (AsidePlace(inside, f"{listed} has no directory above it"),)
    try:
        is_mount = os.stat(above).st_dev != os.stat(listed).st_dev  # noqa: PTH116 -- as above
    except OSError:
        is_mount = True
    if is_mount:
        return (AsidePlace(inside, f"{above} is another file system than {listed}"),)
    beside = f"{above.rstrip('/')}/{step_names.ASIDE}"
    return AsidePlace(beside), AsidePlace(inside, f"{beside} cannot be used by this user")


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


def _may_write(directory: str) -> bool:
    there = directory if os.path.isdir(directory) else os.path.dirname(directory)  # noqa: PTH112, PTH120 -- as above
    return os.access(there, os.W_OK | os.X_OK)


def _reverse_move(change: AsideChange) -> str:
    if not os.path.lexists(change.to):
        return "" if change.phase == "intent" and os.path.lexists(change.path) else f"{change.to} is not there any more"
    try:
        # by its inode alone: a device number may change at a restart, and a person may change files in the directory
        if os.lstat(change.to).st_ino != change.identity.ino:
            return "" if change.phase == "intent" else f"{change.to} is not the file that was moved there"
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
            return at_place(change.path, lambda place: _keep(change, place))
        staging.remove(change.path)
        durable.sync_directory(os.path.dirname(change.path))  # noqa: PTH120 -- as above
    except OSError as error:
        return f"{change.path} could not be taken away: {error.strerror}"
    return ""


def _keep(change: AsideChange, place: AsidePlace) -> str:
    """Move the file that was put back out of the way, since nothing else holds its content. Return "" or why not."""
    kept = _free_name(f"{place.path}/kept-", change.id)
    if kept is None:
        return f"there is no free name in {place.path}"
    durable.rename_exclusive(change.path, kept)
    durable.sync_directory(os.path.dirname(change.path))  # noqa: PTH120 -- as above
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
