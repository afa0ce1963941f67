"""Chooses the checkpoint to resume from: the newest that is proven whole. Bad ones are rejected on the way.

The order is that of checkpointing/ordering.py: by run, attempt and step. Three things make that more than a sort:

* A name with the word "step" is believed for the order. For any other name the content is read first (directory and data.pkl, not the
  bulk). If the full reading then finds a lower step than the name gave, the file goes back into the queue.
* Weights that turned NaN: a checkpoint whose weights hold NaN gives way to the newest older one in which one of those
  weights holds numbers. If none is older, or all hold NaN in the same weights, the newest is taken as it is.
* Files with an epoch and a step within it come after those with a step of the whole run: two such counts do not compare. Files without a
  step come last, newest modification first: an export or a "best.pt" must not win against step 5000 because it was written later.

checkpointing/candidates.py says how each is proven.

How long it takes. Nothing is refused for lack of time: an unverified checkpoint is read in full, however long that takes, because an older
checkpoint, or none, costs more than the reading. A checkpoint from which no byte comes gives way to the next one
(checkpointing/io/read_watch.py); `Selection.silent` names it, since it may be whole.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing import ordering
from checkpointing.candidates import REJECTED_FOR, CandidateReader, SelectionOptions, Spare
from checkpointing.manifest.documents import is_same
from checkpointing.model import Candidate, Identity, Verdict, Verification, nan_weights, note_of
from checkpointing.ordering import Age
from checkpointing.verification import Cache, identity_of

if TYPE_CHECKING:
    from checkpointing.discover import Listing
    from checkpointing.manifest.documents import Manifest

MOST_OLDER: Final = 20
_MAYBE_WHOLE: Final = (Verdict.UNVERIFIABLE, Verdict.UNKNOWN)
REJECTED: Final = "rejected: attempts that loaded it failed, so it is not handed out any more in this run"

Why = tuple[tuple[str, str], ...]  # (path, reason) each


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen checkpoint, and the faults of the others, each as (path, reason)."""

    #: None: none is proven whole.
    chosen: Verification | None
    #: How many there are that may be checkpoints, with the paths that could not be read. If it is not 0 and `chosen` is None, there may be
    #: checkpoints and none is proven good. Files of other kinds are not counted.
    n_found: int
    #: Torn and incomplete ones, those of earlier selections included.
    torn: Why = ()
    #: Checkpoints that may be whole, of formats that have nothing to check.
    unverifiable: Why = ()
    #: Checkpoints that could not be read, or changed while they were read.
    unknown: Why = ()
    #: Checkpoints that the caller avoids.
    rejected: Why = ()
    #: The newest MOST_OLDER after the chosen one, oldest first, as (path, step or None), unread.
    older: tuple[tuple[str, int | None], ...] = ()
    #: Matches that are not checkpoints.
    foreign: Why = ()
    #: The chosen one lies elsewhere. Of our own copy `chosen.path` is the copy: it can be read there, or put back. Of a mirror's it is the
    #: home, where nothing may be yet: it must be restored first.
    spare: Spare | None = None
    #: Checkpoints that are whole, hold NaN, and gave way to an older one.
    not_finite: Why = ()
    #: Notes for people about the choice.
    notes: tuple[str, ...] = ()
    #: Checkpoints that could run code, those of earlier selections included.
    dangerous: Why = ()
    #: The members of `unknown` from which no byte came: they may be whole.
    silent: Why = ()
    #: Those of `unverifiable` and `unknown` that are newer than the chosen one, or of unknown age; none where nothing was chosen.
    passed_over: Why = ()


def newest(listing: Listing, options: SelectionOptions | None = None) -> Selection:
    """Choose the newest whole checkpoint of a listing and of the spares, and reject the torn ones that are newer.

    Reads the candidates from the newest on until one is proven whole; the page cache keeps the bytes, because a job reads the chosen one
    next. Raises nothing about a checkpoint: the fault of each is in the selection.

        newest(find("ckpt/*.pt")).chosen
    """
    reader, tally = CandidateReader(options or SelectionOptions()), _Tally()
    queue = _gather(listing, reader, tally)
    choice = (_take_finite if reader.options.prefer_finite else _take)(queue, reader, tally)
    if reader.options.rejections is not None:
        for kind in REJECTED_FOR.values():
            reader.options.rejections.add([row for row, its_kind in tally.to_reject if its_kind == kind], kind)
    return _selection(listing, queue, tally, reader, choice)


def held(listing: Listing, options: SelectionOptions) -> tuple[list[tuple[Candidate | Spare, int | None]], Selection]:
    """Return the candidates that `newest` would read, newest first, each with its step if known; and the reasons against the others.

    None is read in full, so it is unknown which are whole; `chosen` is None.
    """
    reader, tally = CandidateReader(options), _Tally()
    queue = _gather(listing, reader, tally)
    rows = [(candidate, _step_of(candidate, verified, options.cache)) for _, candidate, verified in sorted(queue, key=lambda row: row[0])]
    return rows, _selection(listing, queue, tally, reader, (None, None, None))


def _selection(listing: Listing, queue: list[_Row], tally: _Tally, reader: CandidateReader, taken: _Taken) -> Selection:
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
        _behind(queue, reader.options.cache),
        tuple(tally.foreign),
        spare,
        tuple(tally.not_finite),
        (*tally.notes, *(() if chosen is None or key is None else _lower_and_later(chosen, key, queue))),
        tuple(tally.dangerous),
        tuple(reader.silent.items()),
        () if key is None else (*(why for age, why in tally.maybe_whole if age.position < key.position), *listing.problems),
    )


_Row = tuple[Age, Candidate | Spare, Verification | None]


def _gather(listing: Listing, reader: CandidateReader, tally: _Tally) -> list[_Row]:
    """Queue the candidates that pass by name and metadata, and the spares; tally the others."""
    options, avoided = reader.options, frozenset(reader.options.avoid)
    queue: list[_Row] = []
    for candidate in listing.candidates:
        rejection = options.rejections.get(candidate.path, candidate.identity) if options.rejections is not None else None
        is_dangerous = rejection is not None and rejection.kind == REJECTED_FOR[Verdict.DANGEROUS]
        if candidate.path in avoided:
            tally.rejected.append((candidate.path, REJECTED))
            continue
        if rejection is not None and not (is_dangerous and options.own(candidate.path)):  # who wrote it may be known since
            (tally.dangerous if is_dangerous else tally.torn).append((candidate.path, rejection.reason))
            continue
        glanced = reader.glance(candidate)
        if glanced is not None and glanced.verdict is not Verdict.VERIFIED and not reader.may_prove(candidate, glanced):
            tally.refuse(glanced, options.order.of_candidate(candidate, glanced), is_declared=candidate.is_declared)
        else:
            queue.append((options.order.of_candidate(candidate, glanced), candidate, None))
    for spare in options.spares:
        if spare.copy_path in avoided or (spare.original_path in avoided and _holds(spare.original_path, spare.manifest)):
            tally.rejected.append((spare.name, REJECTED))
        else:
            distance = ordering.COPY if spare.copy_path else ordering.MIRROR
            queue.append((options.order.of_manifest(spare.manifest, distance, spare.name), spare, None))
    return queue


_Taken = tuple[Age, Verification, Spare | None] | tuple[None, None, None]


def _take_finite(queue: list[_Row], reader: CandidateReader, tally: _Tally) -> _Taken:
    """Take the newest in which at least one of the weights that are NaN in the newest of all is finite."""
    age, newest_whole, spare = _take(queue, reader, tally)
    if newest_whole is None or age is None:
        return None, None, None
    lost = nan_weights(newest_whole.non_finite or ())
    passed: list[tuple[Age, Verification, Spare | None]] = [(age, newest_whole, spare)]
    while lost:
        age, older, spare = _take(queue, reader, tally)
        if older is None or age is None:
            break
        if not lost <= nan_weights(older.non_finite or ()):
            instead = "an older one" if older.step is None else f"step {older.step}"
            for _, whole, _spare in passed:
                tally.not_finite.append(
                    (whole.path, f"its weights hold NaN: {note_of(whole.non_finite or ())}; {instead} is taken instead")
                )
            return age, older, spare
        passed.append((age, older, spare))
    for its_age, whole, its_spare in passed[1:]:  # all of them hold NaN there: the older ones stay in their order
        heapq.heappush(queue, (its_age, its_spare or _candidate_of(whole), whole))
    return passed[0]


def _candidate_of(verification: Verification) -> Candidate:
    return Candidate(verification.path, verification.identity, None)


def _take(queue: list[_Row], reader: CandidateReader, tally: _Tally) -> _Taken:
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
            true_key = reader.options.order.of_candidate(candidate, verification)
            if verification.verdict is Verdict.VERIFIED and true_key > key:  # older than by its name: newer ones go first
                heapq.heappush(queue, (true_key, candidate, verification))
                continue
            if verification.verdict is Verdict.VERIFIED:
                return true_key, verification, None
        tally.refuse(verification, key, is_declared=isinstance(candidate, Candidate) and candidate.is_declared)
    return None, None, None


def _behind(queue: list[_Row], cache: Cache) -> tuple[tuple[str, int | None], ...]:
    """Return the rest of the queue, oldest first, each with its step if a name or an earlier reading has it."""
    newest_first = heapq.nsmallest(MOST_OLDER, queue, key=lambda row: row[0])
    return tuple(
        (candidate.name if isinstance(candidate, Spare) else candidate.path, _step_of(candidate, verified, cache))
        for _, candidate, verified in reversed(newest_first)
    )


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
        self.maybe_whole: list[tuple[Age, tuple[str, str]]] = []

    def refuse(self, verification: Verification, age: Age, *, is_declared: bool) -> None:
        """Count one. A file declared to be a checkpoint is treated as one, though no format claims it."""
        why = (verification.path, verification.reason)
        if verification.verdict in _MAYBE_WHOLE or (verification.verdict is Verdict.FOREIGN and is_declared):
            self.maybe_whole.append((age, why))
        if verification.verdict in REJECTED_FOR:
            self.to_reject.append(((verification.path, verification.identity, verification.reason), REJECTED_FOR[verification.verdict]))
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
