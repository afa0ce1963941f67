"""Chooses what to resume from: the newest checkpoint that is proven whole. What must not be resumed from is rejected on the way.

The order is that of checkpointing/ordering.py: by run, attempt and step. Three things make that more than a sort:

* A name with the word "step" is believed for the order. For any other name the content is read first (directory and data.pkl, not the
  bulk). If the full reading then finds a lower step than the name gave, the file goes back into the queue.
* Weights that turned NaN: with `prefer_finite`, a checkpoint whose weights hold NaN gives way to the newest older one in which one of those
  weights holds numbers. If none is older, or all hold NaN in the same weights, the newest is taken as it is.
* Files with an epoch and a step within it come after those with a step of the whole run: two such counts do not compare. Files without a
  step come last, newest modification first: an export or a "best.pt" must not win against step 5000 because it was written later.

How far one is proven, in the order of the attempts; `Selection.chosen.level` has the answer:

* "identity": it was verified before, and is unchanged by inode, size and modification time (another machine, and this one after its next
  boot, may number the device anew). Its directory and metadata were read again, and nothing else: that takes milliseconds at any size.
* "digest": it has size and modification time of what its manifest was made of and lies elsewhere, or a checkpoint may have caused the
  last failure (`suspect`); every byte is the one recorded. So it is with a rewritten file whose format has no checksums.
* "structure", "layout": it has no manifest, or was rewritten since; its own format was checked in full.
* "manifest": it lies in a mirror and is not here yet: the restore checks every byte.

How long it takes. Nothing is refused for lack of time: what was never verified is read in full, however long that takes, because an older
checkpoint, or none, costs more than the reading. A checkpoint from which no byte comes gives way to the next one
(checkpointing/io/read_watch.py); `Selection.silent` names it, since it may be whole.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from checkpointing import markers, ordering
from checkpointing.io.read_watch import DiskSilent, ReadWatch
from checkpointing.io.reader import Interrupted, Throttle, never
from checkpointing.io.tree import ReadOptions
from checkpointing.manifest import check
from checkpointing.manifest.documents import Manifest, Manifests
from checkpointing.model import Candidate, Identity, Verdict, Verification, nan_weights, note_of
from checkpointing.ordering import Age, Order
from checkpointing.verification import NOT_TO_THE_END, Cache, identity_of, verify

if TYPE_CHECKING:
    from checkpointing.discover import Listing
    from checkpointing.rejections import Rejections

MOST_OLDER: Final = 20
REJECTED: Final = "rejected: attempts that loaded it failed, so it is not handed out any more in this run"

_NOWHERE: Final = Identity(0, 0, 0, 0)
_FULL: Final = ("digest", "structure", "layout")  # levels that only a full reading gives
_DANGEROUS: Final = "dangerous"
_SUSPECT: Final = "the last failure may come from a checkpoint"
_KINDS: Final = {Verdict.BAD: "torn", Verdict.INCOMPLETE: "incomplete", Verdict.DANGEROUS: _DANGEROUS}

Why = tuple[tuple[str, str], ...]  # (path, reason) each


def never_own(_path: str) -> bool:
    """Return False: no path is known to be written by this job."""
    return False


@dataclass(frozen=True, slots=True)
class Spare:
    """A checkpoint outside the place where the job reads it."""

    #: To which it would be put back.
    original_path: str
    manifest: Manifest
    #: Of a copy on this machine; "" for what a mirror has.
    copy_path: str
    #: Names the copy or the mirror for people.
    source: str

    @property
    def name(self) -> str:
        """Its name among candidates."""
        return self.copy_path or self.source


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen checkpoint, and what stands against the others, each as (path, reason).

    `found` counts what may be a checkpoint, and paths that could not be read: chosen None with found > 0 means that there may be
    checkpoints, and none is proven good. Files of other kinds are not counted. `torn` are the torn and incomplete
    ones, `dangerous` those that could run code, those of earlier selections included; `unknown` could not be read, or changed while they
    were; `rejected` are those that the caller avoids; `not_finite` are whole and gave way to an older one; `foreign` matched and are no
    checkpoints. `older` are the newest MOST_OLDER behind the chosen one, oldest first, as (path, step or None), unread.

    `spare`: the chosen one lies elsewhere. For our own copy `chosen.path` is the copy: it can be read there, or put back. For a mirror's it
    is the home, where nothing may be yet: it must be restored first. `notes`: what a person should know of it.
    `silent` are those of the `unknown` from which no byte came: they may be whole.
    """

    chosen: Verification | None
    found: int
    torn: Why = ()
    unverifiable: Why = ()
    unknown: Why = ()
    rejected: Why = ()
    older: tuple[tuple[str, int | None], ...] = ()
    foreign: Why = ()
    spare: Spare | None = None
    not_finite: Why = ()
    notes: tuple[str, ...] = ()
    dangerous: Why = ()
    silent: Why = ()


def glance(
    candidate: Candidate,
    cache: Cache,
    interrupted: Callable[[], bool] = never,
    *,
    own: Callable[[str], bool] = never_own,
    watch: ReadWatch | None = None,
) -> Verification | None:
    """Read the metadata of a file whose name does not surely give its step. None: the name does. Raises DiskSilent, Interrupted."""
    if candidate.named is not None and candidate.named.sure:
        return None
    known = cache.get(candidate.path, candidate.identity)
    if known is None:
        path, is_own, reading = candidate.path, own(candidate.path), ReadOptions(interrupted=interrupted)
        if watch is None:
            known = verify(path, bulk=False, reading=reading, own=is_own)
        else:
            known = watch.read(
                path, lambda how: verify(path, bulk=False, reading=how, own=is_own), device=candidate.identity.dev, reading=reading
            )
        cache.put(known)
    return known


def newest(  # noqa: PLR0913 -- each is a thing that a caller or a test replaces by itself
    listing: Listing,
    rejections: Rejections | None = None,
    cache: Cache | None = None,
    *,
    manifests: Manifests | None = None,
    spares: Sequence[Spare] = (),
    suspect: bool = False,
    throttle: Throttle | None = None,
    interrupted: Callable[[], bool] = never,
    watch: ReadWatch | None = None,
    avoid: Collection[str] = (),
    prefer_finite: bool = False,
    order: Order = Order(),  # noqa: B008 -- a frozen value
    own: Callable[[str], bool] = never_own,
) -> Selection:
    """Choose the newest whole checkpoint of a listing and of the spares, and reject the torn ones that are newer.

    `avoid`: paths that are passed over unread, with the copies of their present content. They count as found, so that the job does not
    start from scratch because of them. `prefer_finite`: one whose weights turned NaN gives way to an older. `suspect`: the last failure
    may have come from a checkpoint. `rejections` None: nothing is recorded. `cache`: verdicts of earlier calls.
    `own`: whether a path is known to be written by this job (see `verify`).
    The page cache is left alone: the ranks read the chosen file next. `interrupted` is asked before each MiB. `watch` reports how far a
    long read is, and remembers the disks that do not answer.
    """
    cache = Cache() if cache is None else cache
    watch = ReadWatch() if watch is None else watch
    reader = _CandidateReader(cache, manifests, suspect, throttle, interrupted, watch, order, own)
    tally = _Tally()
    avoided = frozenset(avoid)
    queue = _gather(listing, rejections, reader, tally, avoided)
    _gather_spares(spares, queue, tally, avoided, order)
    taken = (_take_finite if prefer_finite else _take)(queue, reader, tally)
    if rejections is not None:
        for kind in dict.fromkeys(_KINDS.values()):
            rejections.add([row for row, its_kind in tally.to_reject if its_kind == kind], kind)
    return _selection(listing, queue, tally, reader, taken)


def held(  # noqa: PLR0913 -- as newest
    listing: Listing,
    rejections: Rejections | None,
    cache: Cache,
    *,
    manifests: Manifests | None = None,
    spares: Sequence[Spare] = (),
    avoid: Collection[str] = (),
    order: Order = Order(),  # noqa: B008 -- a frozen value
    own: Callable[[str], bool] = never_own,
    watch: ReadWatch | None = None,
) -> tuple[list[tuple[Candidate | Spare, int | None]], Selection]:
    """Return the candidates that `newest` would read, newest first, each with its step if known; and the reasons against the others.

    None is read in full, so it is unknown which are whole; `chosen` is None.
    """
    tally = _Tally()
    reader = _CandidateReader(cache, manifests, False, None, never, ReadWatch() if watch is None else watch, order, own)  # noqa: FBT003
    queue = _gather(listing, rejections, reader, tally, frozenset(avoid))
    _gather_spares(spares, queue, tally, frozenset(avoid), order)
    rows = [(candidate, _step_of(candidate, verified, cache)) for _, candidate, verified in sorted(queue, key=lambda row: row[0])]
    return rows, _selection(listing, queue, tally, reader, (None, None, None))


def _selection(listing: Listing, queue: list[_Row], tally: _Tally, reader: _CandidateReader, taken: _Taken) -> Selection:
    key, chosen, spare = taken
    refused = (tally.torn, tally.dangerous, tally.unverifiable, tally.unknown, tally.rejected, tally.not_finite)
    known = len(queue) + (chosen is not None) + sum(map(len, refused))
    tally.unknown.extend(listing.problems)
    return Selection(
        chosen,
        known + len(listing.problems),
        tuple(tally.torn),
        tuple(tally.unverifiable),
        tuple(tally.unknown),
        tuple(tally.rejected),
        _behind(queue, reader.cache),
        tuple(tally.foreign),
        spare,
        tuple(tally.not_finite),
        (*tally.notes, *(() if chosen is None or key is None else _lower_and_later(chosen, key, queue))),
        tuple(tally.dangerous),
        tuple(reader.silent.items()),
    )


_Row = tuple[Age, Candidate | Spare, Verification | None]


def _gather_spares(spares: Sequence[Spare], queue: list[_Row], tally: _Tally, avoided: frozenset[str], order: Order) -> None:
    for spare in spares:
        if spare.copy_path in avoided or (spare.original_path in avoided and _holds(spare.original_path, spare.manifest)):
            tally.rejected.append((spare.name, REJECTED))
        else:
            distance = ordering.COPY if spare.copy_path else ordering.MIRROR
            queue.append((order.of_manifest(spare.manifest, distance, spare.name), spare, None))


def _gather(
    listing: Listing, rejections: Rejections | None, reader: _CandidateReader, tally: _Tally, avoided: frozenset[str]
) -> list[_Row]:
    """Queue the candidates that pass by name and metadata, and tally the others."""
    queue: list[_Row] = []
    for candidate in listing.candidates:
        rejection = rejections.get(candidate.path, candidate.identity) if rejections is not None else None
        if candidate.path in avoided:
            tally.rejected.append((candidate.path, REJECTED))
            continue
        if rejection is not None and not (rejection.kind == _DANGEROUS and reader.own(candidate.path)):  # who wrote it may be known since
            (tally.dangerous if rejection.kind == _DANGEROUS else tally.torn).append((candidate.path, rejection.reason))
            continue
        glanced = reader.glance(candidate)
        if glanced is not None and glanced.verdict is not Verdict.VERIFIED and not reader.may_prove(candidate, glanced):
            tally.refuse(glanced, is_declared=candidate.is_declared)
        else:
            queue.append((reader.order.of_candidate(candidate, glanced), candidate, None))
    return queue


_Taken = tuple[Age, Verification, Spare | None] | tuple[None, None, None]


def _take_finite(queue: list[_Row], reader: _CandidateReader, tally: _Tally) -> _Taken:
    """Take the newest in which at least one of the weights that are NaN in the newest of all is finite."""
    age, newest, spare = _take(queue, reader, tally)
    if newest is None or age is None or not (lost := nan_weights(newest.non_finite or ())):
        return (None, None, None) if newest is None or age is None else (age, newest, spare)
    passed: list[tuple[Age, Verification, Spare | None]] = [(age, newest, spare)]
    while True:
        age, found, taken = _take(queue, reader, tally)
        if found is None or age is None:
            break
        if not lost <= nan_weights(found.non_finite or ()):
            back = "an older one" if found.step is None else f"step {found.step}"
            for _, one, _home in passed:
                tally.not_finite.append((one.path, f"its weights hold NaN: {note_of(one.non_finite or ())}; {back} is taken instead"))
            return age, found, taken
        passed.append((age, found, taken))
    for its_age, one, home in passed[1:]:  # all of them hold NaN there: the older ones stay in their order
        heapq.heappush(queue, (its_age, home or _candidate_of(one), one))
    return passed[0]


def _candidate_of(verification: Verification) -> Candidate:
    return Candidate(verification.path, verification.identity, None)


def _take(queue: list[_Row], reader: _CandidateReader, tally: _Tally) -> _Taken:
    """Take the newest proven one out of the queue, and tally those that fail."""
    heapq.heapify(queue)
    while queue:
        key, candidate, verified = heapq.heappop(queue)
        if isinstance(candidate, Spare):
            verification = reader.read_spare(candidate)
            if verification.verdict is Verdict.VERIFIED:
                return key, verification, candidate
        else:
            verification = verified or reader.read(candidate)
            true_key = reader.order.of_candidate(candidate, verification)
            if verification.verdict is Verdict.VERIFIED and true_key > key:  # older than by its name: newer ones go first
                heapq.heappush(queue, (true_key, candidate, verification))
                continue
            if verification.verdict is Verdict.VERIFIED:
                return true_key, verification, None
        tally.refuse(verification, is_declared=isinstance(candidate, Candidate) and candidate.is_declared)
    return None, None, None


def _behind(queue: list[_Row], cache: Cache) -> tuple[tuple[str, int | None], ...]:
    """Return the rest of the queue, oldest first, each with its step if a name or an earlier reading has it."""
    newest_first = heapq.nsmallest(MOST_OLDER, queue, key=lambda row: row[0])
    found = [
        (candidate.name if isinstance(candidate, Spare) else candidate.path, _step_of(candidate, verified, cache))
        for _, candidate, verified in newest_first
    ]
    return tuple(reversed(found))


def _step_of(candidate: Candidate | Spare, verified: Verification | None, cache: Cache) -> int | None:
    if isinstance(candidate, Spare):
        return candidate.manifest.step
    known = verified or cache.get(candidate.path, candidate.identity)
    return known.step if known is not None else candidate.named.step if candidate.named is not None else None


def _lower_and_later(chosen: Verification, key: Age, queue: list[_Row]) -> tuple[str, ...]:
    """Return a note if the chosen checkpoint is not the one of the highest step, and was not rolled back."""
    higher = [row for row in queue if row[0].step is not None and key.step is not None and row[0].step > key.step]
    passed = min((row for row in higher if not row[0].is_rolled_back), key=lambda row: (row[0].major, row[0]), default=None)
    if passed is None or key.is_rolled_back:
        return ()
    other = passed[1].name if isinstance(passed[1], Spare) else passed[1].path
    when = "it was saved later in the same run" if passed[0].lineage.run == key.run else "a later run saved it"
    return (f"{chosen.path} (step {key.step}) is newer than {other} (step {passed[0].step}): {when}",)


def _holds(path: str, manifest: Manifest) -> bool:
    """Return whether a path holds a manifest's content, by size and time. A copy that is put back keeps the original's time."""
    identity = identity_of(path)
    return identity is not None and is_same(identity, manifest)


def is_same(identity: Identity, manifest: Manifest) -> bool:
    """Return whether a manifest describes the content with this identity, which may have moved since."""
    return is_unchanged(identity, manifest.identity) or _has_moved(identity, manifest)


def is_unchanged(identity: Identity, recorded: Identity) -> bool:
    """Return whether it is the same file or directory, unchanged. The number of a device is this machine's, since its last boot."""
    return replace(identity, dev=recorded.dev) == recorded


def _has_moved(identity: Identity, manifest: Manifest) -> bool:
    """Return whether the identity is that of the same content at another path. A directory's has no time, so it never matches."""
    was = manifest.identity
    return not manifest.is_tree and identity != was and (identity.size, identity.mtime_ns) == (was.size, was.mtime_ns)


class _Tally:
    """The candidates that were refused, each with the reason."""

    def __init__(self) -> None:
        self.to_reject: list[tuple[tuple[str, Identity, str], str]] = []
        self.torn: list[tuple[str, str]] = []
        self.dangerous: list[tuple[str, str]] = []
        self.unverifiable: list[tuple[str, str]] = []
        self.unknown: list[tuple[str, str]] = []
        self.rejected: list[tuple[str, str]] = []
        self.not_finite: list[tuple[str, str]] = []
        self.foreign: list[tuple[str, str]] = []
        self.notes: list[str] = []

    def refuse(self, verification: Verification, *, is_declared: bool) -> None:
        """Tally one. What is declared to be a checkpoint counts as one, though no format claims it."""
        why = (verification.path, verification.reason)
        if verification.verdict in _KINDS:
            self.to_reject.append(((verification.path, verification.identity, verification.reason), _KINDS[verification.verdict]))
            (self.dangerous if verification.verdict is Verdict.DANGEROUS else self.torn).append(why)
        elif verification.verdict is Verdict.UNVERIFIABLE:
            self.unverifiable.append(why)
        elif verification.verdict is Verdict.FOREIGN and is_declared:
            self.unverifiable.append((verification.path, f"{verification.reason}, so nothing proves it whole"))
        elif verification.verdict is Verdict.FOREIGN:
            self.foreign.append(why)
        else:
            self.unknown.append(why)
            if verification.verdict is Verdict.WRITING:
                self.notes.append(f"checkpoint passed over: {verification.path}: {verification.reason}")


@dataclass(frozen=True, slots=True)
class _CandidateReader:
    """Reads candidates, each in full where it was not verified before. `silent`: those from which no byte came, with the reason."""

    cache: Cache
    manifests: Manifests | None
    suspect: bool
    throttle: Throttle | None
    interrupted: Callable[[], bool]
    watch: ReadWatch
    order: Order
    own: Callable[[str], bool]
    silent: dict[str, str] = field(default_factory=dict)

    def glance(self, candidate: Candidate) -> Verification | None:
        try:
            return glance(candidate, self.cache, self.interrupted, own=self.own, watch=self.watch)
        except (DiskSilent, Interrupted) as error:
            return self._unread(candidate.path, candidate.identity, error)

    def may_prove(self, candidate: Candidate, glanced: Verification) -> bool:
        """Return whether a manifest may prove what a glance could not."""
        if glanced.verdict is not Verdict.UNVERIFIABLE:
            return False
        manifest = self._manifest(candidate)
        return manifest is not None and manifest.identity.size == candidate.identity.size

    def read(self, candidate: Candidate) -> Verification:
        if markers.unfinished(candidate.path):  # its bytes may be those of the manifest all the same
            return self._verify(candidate.path, candidate.identity, "")
        known = self.cache.get(candidate.path, candidate.identity)
        manifest = self._manifest(candidate)
        if manifest is not None and is_same(candidate.identity, manifest):
            in_doubt = self.suspect or (known is not None and known.verdict in _KINDS)
            if is_unchanged(candidate.identity, manifest.identity) and not in_doubt:
                return self._believed(_recorded(candidate, manifest))
            why = _SUSPECT if self.suspect else "it moved since it was verified"
            return self._kept(self._check(candidate.path, manifest, candidate.identity, why))
        if known is not None and known.verdict in (Verdict.UNVERIFIABLE, Verdict.FOREIGN, Verdict.INCOMPLETE, Verdict.DANGEROUS):
            verification = known
        elif known is not None and known.level in _FULL and not self.suspect:
            verification = self._believed(known)
        else:
            why = "never verified" if known is None or known.level not in _FULL else _SUSPECT
            verification = self._verify(candidate.path, candidate.identity, why)
        if manifest is not None and manifest.identity.size == candidate.identity.size and _may_be_proven(verification):
            # rewritten, or a directory that moved: equal bytes prove it, whatever its zeros look like; others prove nothing
            proven = self._check(candidate.path, manifest, candidate.identity, "its format has no checksums")
            verification = proven if proven.verdict is Verdict.VERIFIED else verification
        return verification if verification.level == "identity" else self._kept(verification)

    def read_spare(self, spare: Spare) -> Verification:
        manifest = spare.manifest
        if spare.copy_path:
            identity = identity_of(spare.copy_path) or _NOWHERE
            return self._check(spare.copy_path, manifest, identity, "a copy")
        return Verification(
            spare.original_path,
            _NOWHERE,
            Verdict.VERIFIED,
            "",
            manifest.step,
            "manifest",
            manifest.within,
            manifest.layout,
            _members(manifest),
            non_finite=manifest.non_finite,
            epoch=manifest.epoch,
            content_step=manifest.content_step,
        )

    def _manifest(self, candidate: Candidate) -> Manifest | None:
        return self.manifests.get(candidate.path) if self.manifests is not None else None

    def _check(self, path: str, manifest: Manifest, identity: Identity, why: str) -> Verification:
        return self._followed(path, identity, lambda how: check.check(path, manifest, reading=how), why)

    def _verify(self, path: str, identity: Identity, why: str) -> Verification:
        own = self.own(path)
        return self._followed(path, identity, lambda how: verify(path, reading=how, own=own), why)

    def _followed(self, path: str, identity: Identity, work: Callable[[ReadOptions], Verification], why: str) -> Verification:
        reading = ReadOptions(self.throttle, interrupted=self.interrupted)
        try:
            return self.watch.read(path, work, device=identity.dev, n_bytes=identity.size if why else 0, why=why, reading=reading)
        except (DiskSilent, Interrupted) as error:
            return self._unread(path, identity, error)

    def _unread(self, path: str, identity: Identity, error: DiskSilent | Interrupted) -> Verification:
        if isinstance(error, DiskSilent):
            self.silent[path] = str(error)
        reason = str(error) if isinstance(error, DiskSilent) else NOT_TO_THE_END
        return Verification(path, identity, Verdict.UNKNOWN, reason, reasons=(reason,))

    def _believed(self, known: Verification) -> Verification:
        """Take what was verified before, if directory and metadata of the file are still good: the bulk is not read."""
        own = self.own(known.path)
        directory = self._followed(known.path, known.identity, lambda how: verify(known.path, bulk=False, reading=how, own=own), "")
        if directory.identity != known.identity or directory.verdict not in (Verdict.VERIFIED, Verdict.UNVERIFIABLE):
            return directory
        self.cache.put(known)
        return replace(known, level="identity")

    def _kept(self, verification: Verification) -> Verification:
        self.cache.put(verification)
        return verification


def _recorded(candidate: Candidate, manifest: Manifest) -> Verification:
    """Return the verdict that a manifest of this identity stands for: only verified checkpoints have one."""
    return Verification(
        candidate.path,
        candidate.identity,
        Verdict.VERIFIED,
        note_of(manifest.non_finite),
        manifest.step,
        check.LEVEL,
        manifest.within,
        manifest.layout,
        _members(manifest),
        non_finite=manifest.non_finite,
        epoch=manifest.epoch,
        content_step=manifest.content_step,
    )


def _members(manifest: Manifest) -> tuple[str, ...]:
    return tuple(file.path for file in manifest.files) if manifest.is_tree else ()


def _may_be_proven(verification: Verification) -> bool:
    is_probable = verification.verdict in (Verdict.UNVERIFIABLE, Verdict.BAD)
    return is_probable or (verification.verdict is Verdict.VERIFIED and verification.level == "layout")
