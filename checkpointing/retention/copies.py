"""Keeps copies of the job's checkpoints, for scripts that write one file again and again, in place.

A copy shares the blocks of the original where the file system can do that (reflink). A copy is kept only with the digests of its manifest:
those of the pass over the original in which it was made (checkpointing/reader/one_pass.py), or of a read of its own. It appears all at
once (io/staging.py). There is one `copies/` for each job and node, in the state directory's `checkpoints/`; commands of other processes
may use it at the same time.

The policy counts the copies of each path; the cap holds for all together. While a new copy is made, the one that it replaces is still
there, so the copies may exceed the cap by the size of one. No copy is made that would leave the disk without room for two more saves of
that size.

Each copy has a row in the job's catalogue. It may be held for a run: the row names the run, and no policy removes the copy while that run
lasts. `prune` by a person's command, which belongs to no run, leaves every held copy. The directories say which copies there are: with a
catalogue only the holds are lost.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from checkpointing import ordering
from checkpointing.candidates import Spare
from checkpointing.io import durable, staging
from checkpointing.io.file_copy import COPY, FileCopy, copy_modes, lacks_room
from checkpointing.io.reader import NotRegular, Short
from checkpointing.io.row_file import RowTable
from checkpointing.io.tree import ReadOptions
from checkpointing.manifest import check, digest, documents
from checkpointing.manifest.documents import Manifest, ManifestDamaged
from checkpointing.model import Identity, Verdict
from checkpointing.ordering import Order
from checkpointing.retention import rules

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from checkpointing.catalogue import CheckpointCatalogue
    from checkpointing.io.staging import Staged
    from checkpointing.retention.aside import AsideRecord

DIRECTORY: Final = "copies"
SAVES_LEFT: Final = 2  # of this size, that a copy must leave room for


class _Changed(Exception):  # noqa: N818 -- a fact about the original, not a program error
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
class CopyRow:
    """The catalogue's row of a copy: its directory's name, its original and its time (wall time in seconds), and Copy.held_by."""

    name: str
    path: str
    identity: Identity
    t: float
    held_by: str = ""


#: By its name in `copies/`: a copy: the `path` and `identity` that it was made of, when (`t`), and the run that it is `held_by`,
#: for which no policy removes it.
COPIED: Final = RowTable("copied", CopyRow, lambda row: row.name)


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
        catalogue: CheckpointCatalogue,
        cap_bytes: int,
        *,
        order: Callable[[], Order] = Order,
        is_abandoned: Callable[[Manifest], bool] = lambda _manifest: False,
        run_id: str = "",
    ) -> None:
        """Use `copies` beside the catalogue, which need not exist yet. `is_abandoned`: whether a person removed the original.

        `run_id`: the run whose held copies stay; "": those of every run do.
        """
        self._run_id = run_id
        self._catalogue = catalogue
        self._directory = f"{catalogue.file.parent}/{DIRECTORY}"
        self._cap_bytes = cap_bytes
        self._order = order
        self._is_abandoned = is_abandoned
        self.problem: str | None = None

    def all(self) -> tuple[Copy, ...]:
        """Return every copy, oldest first. A copy with a damaged manifest is left out, and `problem` names it."""
        copies, held = list[Copy](), {row.name: row.held_by for row in self._catalogue.each(COPIED)}
        for name in _names(self._directory):
            directory = f"{self._directory}/{name}"
            file = f"{directory}/{documents.FILE_NAME}"
            try:
                made_ns = os.stat(file).st_mtime_ns  # noqa: PTH116 -- plain strings
                copies.append(Copy(documents.read(file), directory, made_ns, held.get(name, "")))
            except (OSError, ManifestDamaged) as error:
                self.problem = f"a copy could not be read: {file}: {error}"
        return tuple(sorted(copies, key=lambda copy: (copy.made_ns, copy.directory)))

    def is_held(self, copy: Copy) -> bool:
        """Return whether no policy may remove a copy: it is held for this run, or for any where this is the command of a person."""
        return bool(copy.held_by) and self._run_id in {"", copy.held_by}

    def hold(self, copy: Copy) -> str:
        """Hold a copy for this run. Return "" or why not."""
        is_written = self._catalogue.put(COPIED, replace(_row_of(copy), held_by=self._run_id))
        return "" if is_written else f"it could not be held: {self._catalogue.not_written}"

    def release(self, copy: Copy) -> None:
        """Hold a copy no longer. A failure only keeps it longer, and is the catalogue's `problem`."""
        self._catalogue.put(COPIED, _row_of(copy))

    def newest_for(self, path: str) -> Copy | None:
        """Return the newest copy of a path."""
        order = self._order()
        of_path = [copy for copy in self.all() if copy.manifest.path == path and not self._is_abandoned(copy.manifest)]
        return min(of_path, key=lambda copy: _age(copy, order), default=None)

    def spares(self) -> tuple[Spare, ...]:
        """Return the copies that select.newest may choose."""
        usable = (copy for copy in self.all() if not self._is_abandoned(copy.manifest))
        return tuple(Spare(copy.manifest.path, copy.manifest, copy.place, "a backup copy") for copy in usable)

    def keep(  # noqa: PLR0913 -- the original, the copies that stay, and the way
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
        existing = self.all()
        known = _copy_of(manifest, existing)
        if known is not None:
            return KeptCopy(known)
        if self._to_remove(existing, manifest, policy, self._with_held(existing, needed)) is None:
            return KeptCopy(None, self._too_large())
        may_link = may_link and not manifest.is_tree
        try:
            with self.staged(manifest.name) as place:
                problem = _duplicate(
                    manifest.path,
                    data_of(place, manifest.name),
                    manifest,
                    reading,
                    saves_left=SAVES_LEFT,
                    may_link=may_link,
                    most_copied_bytes=most_copied_bytes,
                )
                return KeptCopy(None, problem) if problem else self.complete(place, manifest, policy, needed)
        except _Changed as error:
            return KeptCopy(None, str(error), is_transient=True)
        except OSError as error:
            return KeptCopy(None, _why_not(error), is_transient=isinstance(error, FileNotFoundError))

    @contextlib.contextmanager
    def staged(self, name: str) -> Iterator[Staged]:
        """Make a directory for a copy of a checkpoint of this name, at `data_of`. It goes again unless `complete`d. Raises OSError."""
        self.sweep()
        durable.make_directory(self._directory)
        with staging.new_directory(f"{self._directory}/{documents.plain(name)}", 0o700) as place:
            os.mkdir(f"{place.path}/data", 0o700)  # noqa: PTH102 -- as above
            yield place

    def complete(self, place: Staged, manifest: Manifest, policy: rules.RetentionPolicy, needed: Needed = Needed()) -> KeptCopy:
        """Keep the copy with the digests of a manifest, then remove those that the policy does not keep. Raises OSError."""
        existing = self.all()
        known = _copy_of(manifest, existing)
        if known is not None:
            return KeptCopy(known)
        gone = self._to_remove(existing, manifest, policy, self._with_held(existing, needed))
        if gone is None:
            return KeptCopy(None, self._too_large())
        staging.write(f"{place.path}/{documents.FILE_NAME}", documents.encode(manifest))
        durable.sync_directory(f"{place.path}/data")
        final = f"{self._directory}/{documents.plain(manifest.name)}-{manifest.id}"
        copy = Copy(manifest, final, os.stat(f"{place.path}/{documents.FILE_NAME}").st_mtime_ns)  # noqa: PTH116 -- as above
        if self._catalogue.get(COPIED, _name_of(copy)) is None:
            self._catalogue.put(COPIED, _row_of(copy))  # before others see the copy, and may hold it
        try:
            staging.put(replace(place, final=final), is_replacing=False)
        except FileExistsError:
            twin = _copy_of(manifest, self.all())  # another thread made it meanwhile
            return KeptCopy(twin, "" if twin is not None else f"something is in its place: {final}")
        # the new copy was just read in full: it is the verified one that stays
        return KeptCopy(copy, "", tuple(copy.place for copy in gone if self._remove_unless_held(copy)))

    def _too_large(self) -> str:
        return f"it would not fit into the {self._cap_bytes / 1e9:.3g} GB for copies"

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
        self._catalogue.remove(COPIED, _name_of(copy))
        return True

    def _remove_unless_held(self, copy: Copy) -> bool:
        """Remove a copy that the policy does not keep, unless another thread has held it since it was listed. Return whether it is gone."""
        row = self._catalogue.get(COPIED, _name_of(copy))
        return not self.is_held(replace(copy, held_by="" if row is None else row.held_by)) and self.remove(copy)

    def sweep(self) -> None:
        """Remove the rest of copies whose making or removal was killed, and the rows of those that are gone."""
        staging.sweep(self._directory)
        there = set(_names(self._directory))
        self._catalogue.remove(COPIED, *(row.name for row in self._catalogue.each(COPIED) if row.name not in there))

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


def _by_path(existing: Iterable[Copy], order: Order, needed: Needed, bad: Collection[str] = ()) -> list[list[rules.RetainedItem]]:
    """Return the rows grouped by path: a model's file and its optimizer's may each be torn alone."""
    rows: dict[str, list[rules.RetainedItem]] = {}
    for copy in existing:
        rows.setdefault(copy.manifest.path, []).append(_row(copy, order, needed, Verdict.BAD if copy.place in bad else Verdict.VERIFIED))
    return list(rows.values())


def _row(copy: Copy, order: Order, needed: Needed, verdict: Verdict) -> rules.RetainedItem:
    place = copy.place
    return rules.RetainedItem(
        place,
        _age(copy, order),
        verdict,
        copy.manifest.n_bytes,
        in_use=place in needed.in_use,
        uploading=place in needed.uploading,
        is_finite=not copy.manifest.has_lost_weights,
    )


def _age(copy: Copy, order: Order) -> ordering.Age:
    return order.of_manifest(copy.manifest, ordering.COPY, copy.place)


def _copy_of(manifest: Manifest, copies: Iterable[Copy]) -> Copy | None:
    """Return the copy that has the content and the name of a checkpoint."""
    return next((copy for copy in copies if copy.manifest.id == manifest.id and copy.manifest.name == manifest.name), None)


def _name_of(copy: Copy) -> str:
    return copy.directory.rpartition("/")[2]


def _row_of(copy: Copy) -> CopyRow:
    return CopyRow(_name_of(copy), copy.manifest.path, copy.manifest.identity, copy.made_ns / 1e9)


def _names(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if not staging.is_temporary(name))  # noqa: PTH208 -- as above
    except OSError:
        return []


def data_of(place: Staged, name: str) -> str:
    """Return where the data of a copy that is being made lies."""
    return f"{place.path}/data/{name}"


def _why_not(error: OSError) -> str:
    return f"it could not be copied: {error.strerror or error}"


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
        directory = os.path.dirname(new)  # noqa: PTH120 -- as above
        durable.make_directory(directory)
        with reading.open(old) as opened, FileCopy(old, new, may_link=may_link) as copy:
            if copy.way == COPY and most_copied_bytes is not None and manifest.n_bytes > most_copied_bytes:
                return f"it is larger than {most_copied_bytes / 1e9:.3g} GB, and its disk cannot share blocks"
            if not has_room and (problem := lacks_room(directory, manifest.n_bytes, saves_left, copy.way)):
                return problem
            has_room = True
            hasher = digest.Hasher(part_bytes=manifest.part_bytes, also=copy.take)
            try:
                if copy.way == COPY:
                    read = digest.of_source(opened, hasher)
                else:  # what shares the blocks is read at its new place: the old one may be rewritten
                    with reading.open(new) as shared:
                        read = digest.of_source(shared, hasher)
            except (Short, NotRegular):
                raise _Changed(f"{file.path} changed meanwhile") from None
            if (read.n_bytes, read.crc64nvme, read.parts) != (file.n_bytes, file.crc64nvme, file.parts):
                raise _Changed(f"{file.path} is not what its manifest says: it was written since, or is damaged")
            copy.finish(opened.stat_opened)
    if manifest.is_tree:
        copy_modes(source, target, (file.path for file in manifest.files))
    return ""
