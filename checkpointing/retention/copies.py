"""Keeps copies of the job's checkpoints, for scripts that write one file again and again, in place.

A copy shares the blocks of the original where the file system can do that (reflink). It is read through once in any case: a copy is kept
only with the digests of its manifest. It appears all at once (io/staging.py). There is one `copies/` for each job and node, in the state
directory's `checkpoints/`; commands of other processes may use it at the same time.

The policy counts the copies of each path; the cap holds for all together. While a new copy is made, the one that it replaces is still
there, so the copies may exceed the cap by the size of one. No copy is made that would leave the disk without room for two more saves of
that size.

A copy may be held for a run: a file `held` beside it names the run, and no policy removes it while that run lasts. `prune` by a person's
command, which belongs to no run, leaves every held copy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from checkpointing import ordering
from checkpointing.io import durable, staging
from checkpointing.io.reader import NotRegular, Short
from checkpointing.io.reflink import reflink
from checkpointing.io.tree import ReadOptions
from checkpointing.manifest import check, digest, documents
from checkpointing.manifest.documents import Manifest, ManifestDamaged
from checkpointing.model import Verdict
from checkpointing.ordering import Order
from checkpointing.retention import rules
from checkpointing.select import Spare

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from io import FileIO

    from checkpointing.io.reader import FileReader
    from checkpointing.retention.aside import AsideRecord

DIRECTORY: Final = "copies"
_HELD: Final = "held"  # a file in a copy's directory: the run that it is held for
_SAVES_LEFT: Final = 2  # of this size, that a copy must leave room for
_REFLINK, _LINK, _COPY = "reflink", "link", "copy"  # how a copy was made


class _Changed(Exception):  # noqa: N818 -- a fact about the original, not an error of ours
    """The original changed since its manifest was made."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy: `directory` is its own, `made_ns` wall time of its making. held_by: the run that it is held for, "": none."""

    manifest: Manifest
    directory: str
    made_ns: int
    held_by: str = ""

    @property
    def place(self) -> str:
        """Where its data lies: a file, or a directory, under the name that it had."""
        return f"{self.directory}/data/{self.manifest.name}"


@dataclass(frozen=True, slots=True)
class KeptCopy:
    """The result of a request: the copy, and the places of the removed ones; or None, and the reason.

    `is_transient`: the original changed meanwhile, so the next try may succeed.
    """

    copy: Copy | None
    reason: str = ""
    removed: tuple[str, ...] = ()
    is_transient: bool = False


@dataclass(frozen=True, slots=True)
class Needed:
    """Places of copies that must stay: those that ranks were given, and those that are being uploaded."""

    in_use: frozenset[str] = frozenset()
    uploading: frozenset[str] = frozenset()


class Copies:
    """The copies of a job on this node."""

    def __init__(
        self,
        directory: str,
        cap_bytes: int,
        *,
        order: Callable[[], Order] = Order,
        is_abandoned: Callable[[Manifest], bool] = lambda _manifest: False,
        run_id: str = "",
    ) -> None:
        """Use `directory`/copies, which need not exist yet. `is_abandoned`: whether a person removed the original.

        `run_id`: the run whose held copies stay; "": those of every run do.
        """
        self._run_id = run_id
        self._directory = f"{directory}/{DIRECTORY}"
        self._cap_bytes = cap_bytes
        self._order = order
        self._is_abandoned = is_abandoned
        self.problem: str | None = None

    def all(self) -> tuple[Copy, ...]:
        """Return every copy, oldest first. A copy with a damaged manifest is left out, and `problem` names it."""
        found: list[Copy] = []
        for name in _names(self._directory):
            directory = f"{self._directory}/{name}"
            file = f"{directory}/{documents.FILE_NAME}"
            try:
                made_ns = os.stat(file).st_mtime_ns  # noqa: PTH116 -- plain strings
                found.append(Copy(documents.read(file), directory, made_ns, _held_by(directory)))
            except (OSError, ManifestDamaged) as error:
                self.problem = f"a copy could not be read: {file}: {error}"
        return tuple(sorted(found, key=lambda copy: (copy.made_ns, copy.directory)))

    def is_held(self, copy: Copy) -> bool:
        """Return whether no policy may remove a copy: it is held for this run, or for any where this is the command of a person."""
        return bool(copy.held_by) and self._run_id in {"", copy.held_by}

    def hold(self, copy: Copy) -> str:
        """Hold a copy for this run. Return "" or why not."""
        try:
            staging.write(f"{copy.directory}/{_HELD}", self._run_id.encode("ascii"), is_durable=False)
        except OSError as error:
            return f"it could not be held: {error.strerror or error}"
        return ""

    def release(self, copy: Copy) -> None:
        """Hold a copy no longer. A failure only keeps it longer, and is in `problem`."""
        try:
            staging.remove(f"{copy.directory}/{_HELD}")
        except OSError as error:
            self.problem = f"a copy could not be released: {copy.directory}: {error.strerror}"

    def newest_for(self, path: str) -> Copy | None:
        """Return the newest copy of a path."""
        order = self._order()
        of_path = [copy for copy in self.all() if copy.manifest.path == path and not self._is_abandoned(copy.manifest)]
        return min(of_path, key=lambda copy: _age(copy, order), default=None)

    def spares(self) -> tuple[Spare, ...]:
        """Return the copies that select.newest may choose."""
        usable = (copy for copy in self.all() if not self._is_abandoned(copy.manifest))
        return tuple(Spare(copy.manifest.path, copy.manifest, copy.place, "a copy of ours") for copy in usable)

    def keep(  # noqa: PLR0913 -- what is copied, what stays, and how it is copied
        self,
        manifest: Manifest,
        policy: rules.RetentionPolicy = rules.RetentionPolicy(),  # noqa: B008 -- a frozen value
        needed: Needed = Needed(),
        *,
        may_link: bool = False,
        reading: ReadOptions = ReadOptions(),  # noqa: B008 -- a frozen value
        most_copied_bytes: int | None = None,
    ) -> KeptCopy:
        """Copy a checkpoint that is still as in its manifest, then remove what the policy does not keep.

        `may_link`: the script replaces the file and never rewrites it, so a hard link is a copy. `most_copied_bytes`: a larger one is
        copied only if its blocks can be shared.
        """
        self.sweep()
        existing = self.all()
        needed = self._with_held(existing, needed)
        known = _copy_of(manifest, existing)
        if known is not None:
            return KeptCopy(known)
        gone = self._to_remove(existing, manifest, policy, needed)
        if gone is None:
            return KeptCopy(None, f"it would not fit into the {self._cap_bytes / 1e9:.3g} GB for copies")
        try:
            copy = self._make(manifest, reading, may_link=may_link and not manifest.is_tree, most_copied_bytes=most_copied_bytes)
        except _Changed as error:
            return KeptCopy(None, str(error), is_transient=True)
        except OSError as error:
            twin = _copy_of(manifest, self.all()) if isinstance(error, FileExistsError) else None  # another thread made it meanwhile
            reason = f"it could not be copied: {error.strerror or error}" if twin is None else ""
            return KeptCopy(twin, reason, is_transient=isinstance(error, FileNotFoundError))
        if isinstance(copy, str):
            return KeptCopy(None, copy)
        # the new copy was just read in full: it is the verified one that stays
        return KeptCopy(copy, "", tuple(copy.place for copy in gone if self._remove_unless_held(copy)))

    def prune(
        self,
        policy: rules.RetentionPolicy,
        needed: Needed = Needed(),
        *,
        bad: Collection[str] = (),
        dry_run: bool = False,
        reading: ReadOptions = ReadOptions(),  # noqa: B008 -- a frozen value
    ) -> KeptCopy:
        """Remove the copies of each path that the policy does not keep, after its newest that stays was read and verified again.

        `bad`: places of copies that were found damaged. The answer's `copy` is the newest that stays of the last path with a removal.
        `reason` names each newest copy that failed, for whose path nothing was removed; "" without one.
        """
        by_place = {copy.place: copy for copy in self.all()}
        needed = self._with_held(by_place.values(), needed)
        survivor, removed, reasons = None, list[str](), list[str]()
        for rows in _by_path(by_place.values(), self._order(), needed, bad):
            gone = rules.may_go(rows, policy)
            names = {row.name for row in gone}
            staying = [row for row in rows if row.name not in names and row.verdict is Verdict.VERIFIED]
            if not gone or not staying:
                continue
            newest = by_place[min(staying, key=lambda row: row.age).name]
            if not dry_run:
                verification = check.check(newest.place, newest.manifest, reading=reading)
                if verification.verdict is not Verdict.VERIFIED:
                    reasons.append(
                        f"older ones stay, because the newest that would stay is not proven: {newest.place}: {verification.reason}"
                    )
                    continue
            survivor = newest
            removed += [row.name for row in gone if dry_run or self._remove_unless_held(by_place[row.name])]
        return KeptCopy(survivor, "; ".join(reasons), tuple(removed))

    def put_back(self, copy: Copy, aside: AsideRecord, attempt: int, reason: str) -> str:
        """Put a copy at its original path, which must be free: the caller moved the file there aside. Return "" or why not."""
        path = copy.manifest.path
        if os.path.lexists(path):
            return f"something is there: {path}"
        # where the file from there lies, so that the script meets no unfinished copy under a step's name
        directory = aside.directory_of(path) or os.path.dirname(path)  # noqa: PTH120 -- as above
        try:
            staging.sweep(directory)
            with staging.new_directory(f"{directory}/copy", 0o700) as place:
                target = f"{place.path}/{copy.manifest.name}"
                problem = _duplicate(copy.place, target, copy.manifest, ReadOptions())
                return problem or aside.put(target, path, copy.place, attempt, reason)
        except _Changed as error:
            return str(error)
        except OSError as error:
            return f"it could not be put back: {error.strerror or error}"

    def remove(self, copy: Copy) -> bool:
        """Remove a copy. On failure return False and set `problem`. It stops being a copy before the first of its files is removed."""
        try:
            staging.remove(copy.directory)
        except OSError as error:
            self.problem = f"a copy could not be removed: {copy.directory}: {error.strerror}"
            return False
        return True

    def _remove_unless_held(self, copy: Copy) -> bool:
        """Remove a copy that the policy does not keep, unless another thread has held it since it was listed. Return whether it is gone."""
        return not self.is_held(replace(copy, held_by=_held_by(copy.directory))) and self.remove(copy)

    def sweep(self) -> None:
        """Remove the rest of copies whose making or removal was killed."""
        staging.sweep(self._directory)

    def _to_remove(
        self, existing: tuple[Copy, ...], manifest: Manifest, policy: rules.RetentionPolicy, needed: Needed
    ) -> tuple[Copy, ...] | None:
        """Return the copies to remove for the new one; None if the cap has no room. It keeps fewer copies rather than make none."""
        order = self._order()
        new = rules.RetainedItem("", order.of_manifest(manifest, ordering.COPY, ""), Verdict.VERIFIED, manifest.n_bytes)
        tighter = [replace(policy, newest=newest) for newest in range(policy.newest, 0, -1)]
        names: set[str] = set()
        for candidate_policy in (*tighter, rules.RetentionPolicy(1)):
            rows_of_path = [_row(copy, order, needed, Verdict.VERIFIED) for copy in existing if copy.manifest.path == manifest.path]
            others = _by_path((copy for copy in existing if copy.manifest.path != manifest.path), order, needed)
            names = {row.name for rows in ([*rows_of_path, new], *others) for row in rules.may_go(rows, candidate_policy, new.name)}
            if self._fits(existing, names, manifest):
                return tuple(copy for copy in existing if copy.place in names)
        if manifest.n_bytes > self._cap_bytes:
            return None
        # the last copies of other paths, oldest first: their files may no longer be written
        for copy in existing:
            if copy.place not in names | needed.in_use | needed.uploading and copy.manifest.path != manifest.path:
                names.add(copy.place)
                if self._fits(existing, names, manifest):
                    return tuple(copy for copy in existing if copy.place in names)
        return None

    def _with_held(self, copies: Iterable[Copy], needed: Needed) -> Needed:
        return replace(needed, in_use=needed.in_use | {copy.place for copy in copies if self.is_held(copy)})

    def _fits(self, existing: tuple[Copy, ...], gone: Collection[str], manifest: Manifest) -> bool:
        return sum(copy.manifest.n_bytes for copy in existing if copy.place not in gone) + manifest.n_bytes <= self._cap_bytes

    def _make(self, manifest: Manifest, reading: ReadOptions, *, may_link: bool, most_copied_bytes: int | None) -> Copy | str:
        durable.make_directory(self._directory)
        final = f"{self._directory}/{documents.plain(manifest.name)}-{manifest.id}"
        with staging.new_directory(final, 0o700) as place:
            os.mkdir(f"{place.path}/data", 0o700)  # noqa: PTH102 -- as above
            target = f"{place.path}/data/{manifest.name}"
            problem = _duplicate(
                manifest.path, target, manifest, reading, saves_left=_SAVES_LEFT, may_link=may_link, most_copied_bytes=most_copied_bytes
            )
            if problem:
                return problem
            staging.write(f"{place.path}/{documents.FILE_NAME}", documents.encode(manifest))
            durable.sync_directory(f"{place.path}/data")
            staging.put(place, is_replacing=False)
        return Copy(manifest, final, os.stat(f"{final}/{documents.FILE_NAME}").st_mtime_ns)  # noqa: PTH116 -- as above


def _by_path(existing: Iterable[Copy], order: Order, needed: Needed, bad: Collection[str] = ()) -> list[list[rules.RetainedItem]]:
    """Return the rows grouped by path: a model's file and its optimizer's may each be torn alone."""
    rows: dict[str, list[rules.RetainedItem]] = {}
    for copy in existing:
        rows.setdefault(copy.manifest.path, []).append(_row(copy, order, needed, Verdict.BAD if copy.place in bad else Verdict.VERIFIED))
    return list(rows.values())


def _row(copy: Copy, order: Order, needed: Needed, verdict: Verdict) -> rules.RetainedItem:
    place = copy.place
    return rules.RetainedItem(place, _age(copy, order), verdict, copy.manifest.n_bytes, place in needed.in_use, place in needed.uploading)


def _age(copy: Copy, order: Order) -> ordering.Age:
    return order.of_manifest(copy.manifest, ordering.COPY, copy.place)


def _copy_of(manifest: Manifest, copies: Iterable[Copy]) -> Copy | None:
    """Return the copy that has the content and the name of a checkpoint."""
    return next((copy for copy in copies if copy.manifest.id == manifest.id and copy.manifest.name == manifest.name), None)


def _held_by(directory: str) -> str:
    try:
        return durable.read(f"{directory}/{_HELD}").decode("ascii", "replace")
    except OSError:
        return ""


def _names(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if not staging.is_temporary(name))  # noqa: PTH208 -- as above
    except OSError:
        return []


def _duplicate(  # noqa: PLR0913 -- what, from where, to where, and how
    source: str,
    target: str,
    manifest: Manifest,
    reading: ReadOptions,
    *,
    saves_left: int = 0,
    may_link: bool = False,
    most_copied_bytes: int | None = None,
) -> str:
    """Copy a manifest's files from `source` to `target`; return "" or why not. The caller removes an incomplete `target`.

    Raises _Changed if `source` differs from the manifest.
    """
    has_room = False
    for file in manifest.files:
        old, new = (f"{source}/{file.path}", f"{target}/{file.path}") if manifest.is_tree else (source, target)
        durable.make_directory(os.path.dirname(new))  # noqa: PTH120 -- as above
        way = _REFLINK if reflink(old, new) else _LINK if may_link and _link(old, new) else _COPY
        if way == _COPY and most_copied_bytes is not None and manifest.n_bytes > most_copied_bytes:
            return f"it is larger than {most_copied_bytes / 1e9:.3g} GB, and its disk cannot share blocks"
        if not has_room:
            room = os.statvfs(os.path.dirname(new))  # noqa: PTH120 -- as above
            # shared blocks cost nothing until the original is rewritten: then the job needs as many again
            if room.f_bavail * room.f_frsize < manifest.n_bytes * (saves_left + (way == _COPY)):
                return f"the disk would not have room for {saves_left} more of its size" if saves_left else "the disk has no room for it"
            has_room = True
        try:
            read = _take(old, new, manifest.part_bytes, reading, way)
        except (Short, NotRegular):
            raise _Changed(f"{file.path} changed meanwhile") from None
        if (read.n_bytes, read.crc64nvme, read.parts) != (file.n_bytes, file.crc64nvme, file.parts):
            raise _Changed(f"{file.path} is not what its manifest says: it was written since, or is damaged")
    if manifest.is_tree:
        for inner in sorted({"", *(file.path.rpartition("/")[0] for file in manifest.files)}):
            shutil.copymode(f"{source}/{inner}", f"{target}/{inner}")
            durable.sync_directory(f"{target}/{inner}")
    return ""


def _link(old: str, new: str) -> bool:
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:
        return False
    return True


def _take(old: str, new: str, part_bytes: int, reading: ReadOptions, way: str) -> digest.Digest:
    """Read a file once: the new one if it shares the blocks of the old one, else the old one, which is written to the new one."""
    with reading.open(old) as opened:
        if way != _COPY:
            with reading.open(new) as copy_source:
                read = digest.of_source(copy_source, part_bytes=part_bytes)
        if way == _LINK:
            return read  # owner, mode and times are those of the original, which has them
        flags = os.O_WRONLY | os.O_CLOEXEC | (0 if way == _REFLINK else os.O_CREAT | os.O_EXCL)
        with os.fdopen(os.open(new, flags, 0o600), "wb", buffering=0) as out:
            if way == _COPY:
                read = _write(opened, out, part_bytes)
            _like(out.fileno(), opened.stat_opened)
            os.fsync(out.fileno())
    return read


def _write(opened: FileReader, out: FileIO, part_bytes: int) -> digest.Digest:
    hasher = digest.Hasher(part_bytes=part_bytes)
    for piece in opened.stream(0, opened.size):
        hasher.update(piece)
        rest = piece
        while rest:
            rest = rest[out.write(rest) :]
    return hasher.digest()


def _like(fd: int, st: os.stat_result) -> None:
    """Give an open file the owner, mode and times of another, as far as permitted."""
    with contextlib.suppress(PermissionError):
        os.fchown(fd, st.st_uid, st.st_gid)
    os.fchmod(fd, st.st_mode & 0o777)
    os.utime(fd, ns=(st.st_atime_ns, st.st_mtime_ns))
