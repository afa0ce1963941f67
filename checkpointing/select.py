"""Choose what to resume from: the newest checkpoint that is proven whole.

In: a listing, the fences, a cache of earlier verdicts. Out: a `Selection`, always; torn files are fenced on the way. Nothing can fail
but the recording of a fence, which `Fences` tells itself.

Newest is the highest step. Two things make that more than a sort:

* A name that says "step" is believed for the order; for any other name the content is looked at first (directory and data.pkl, not
  the bulk). What the full reading then finds counts: if the content says less than the name did, the file goes back into the queue.
* Files that tell an epoch and a step within it come after those that tell a step of the whole run: two such counts do not compare.
  Files whose step nobody knows come after all that have one, newest modification first: an export or a "best.pt" must not win
  against step 5000 because it was written later.

How long it takes. A file that was never verified is read in full, because the alternatives, an older checkpoint or none, cost more
than the reading; `limit_s` ends even that. A file that was verified before, and is the same file by its identity, is read again as
long as `budget_s` lasts, and believed without after that, as soon as its directory still holds.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.model import Candidate, Verdict, Verification
from checkpointing.source import Throttle, never
from checkpointing.verify import Cache, verify

if TYPE_CHECKING:
    from checkpointing.catalog import Listing
    from checkpointing.fence import Fences
    from checkpointing.model import Identity

BUDGET_S: Final = 20.0
LIMIT_S: Final = 900.0
MOST_OLDER: Final = 20
POISONED: Final = "poisoned: attempts that loaded it failed, so it is not handed out any more in this run"

Age = tuple[int, int, int, int, str]
Why = tuple[tuple[str, str], ...]  # (path, reason) each


@dataclass(frozen=True, slots=True)
class Selection:
    """What was chosen, and what stands against the others, each as (path, reason).

    `found` counts what may be a checkpoint, and places that could not be looked at: chosen None with found > 0 means that there is, or
    may be, something, and none of it is proven good. Files that are no checkpoints are not counted. `fenced` are the torn ones, those
    of earlier selections included; `unknown` could not be read, or changed while they were; `poisoned` are those that the caller avoids.
    `older` are the newest MOST_OLDER behind the chosen one, oldest first, as (path, step or None): nobody looked into them.
    """

    chosen: Verification | None
    found: int
    fenced: Why = ()
    unverifiable: Why = ()
    unknown: Why = ()
    poisoned: Why = ()
    older: tuple[tuple[str, int | None], ...] = ()


def age_key(candidate: Candidate, found: Verification | None) -> Age:
    """Give the key that sorts the newest first: by step of the whole run, then by epoch and step within it, then late before early.

    `found` is None where nothing was read yet: then the name counts.
    """
    step = found.step if found is not None else candidate.named.step if candidate.named is not None else None
    last = (-candidate.mtime_ns, candidate.path)
    if step is not None:
        return (0, -step, 0, *last)
    if found is not None and found.within is not None:
        epoch, in_epoch = found.within
        return (1, -epoch, -in_epoch, *last)
    return (2, 0, 0, *last)


def glance(candidate: Candidate, cache: Cache, interrupted: Callable[[], bool] = never) -> Verification | None:
    """Look into a file whose name does not surely tell its step; None where the name does, or nothing need be read."""
    if candidate.named is not None and candidate.named.sure:
        return None
    known = cache.get(candidate.path, candidate.identity)
    if known is None:
        known = verify(candidate.path, bulk=False, interrupted=interrupted)
        cache.put(known)
    return known


def newest(  # noqa: PLR0913 -- each is a thing that a caller or a test replaces by itself
    listing: Listing,
    fences: Fences,
    cache: Cache,
    *,
    budget_s: float = BUDGET_S,
    limit_s: float = LIMIT_S,
    throttle: Throttle | None = None,
    interrupted: Callable[[], bool] = never,
    clock: Callable[[], float] = time.monotonic,
    avoid: Collection[str] = (),
) -> Selection:
    """Choose the newest whole checkpoint of a listing, and fence the torn ones that stood before it.

    `avoid`: paths that are passed over unread, whatever they hold now; they count as found, so that nobody starts from scratch for them.
    The page cache is left alone: the ranks read the chosen file next. `interrupted` is asked before each MiB.
    """
    now = clock()
    reader = _Reader(cache, throttle, interrupted, clock, now + budget_s, now + limit_s)
    tally = _Tally()
    avoided = frozenset(avoid)
    queue: list[tuple[Age, Candidate, Verification | None]] = []
    for candidate in listing.candidates:
        fence = fences.get(candidate.path, candidate.identity)
        glanced = None if fence or candidate.path in avoided else glance(candidate, cache, reader.at_limit)
        if candidate.path in avoided:
            tally.poisoned.append((candidate.path, POISONED))
        elif fence is not None:
            tally.fenced.append((candidate.path, fence.reason))
        elif glanced is not None and glanced.verdict is not Verdict.VERIFIED:
            tally.refuse(glanced)
        else:
            queue.append((age_key(candidate, glanced), candidate, None))
    heapq.heapify(queue)
    chosen: Verification | None = None
    while queue and chosen is None:
        key, candidate, verified = heapq.heappop(queue)
        found = verified or reader.read(candidate)
        true_key = age_key(candidate, found)
        if found.verdict is not Verdict.VERIFIED:
            tally.refuse(found)
        elif true_key > key:  # older than its name said: whatever is newer goes first
            heapq.heappush(queue, (true_key, candidate, found))
        else:
            chosen = found
    fences.add(tally.torn)
    known = len(queue) + (chosen is not None) + sum(map(len, (tally.fenced, tally.unverifiable, tally.unknown, tally.poisoned)))
    tally.unknown.extend(listing.problems)
    return Selection(
        chosen,
        known + len(listing.problems),
        tuple(tally.fenced),
        tuple(tally.unverifiable),
        tuple(tally.unknown),
        tuple(tally.poisoned),
        _behind(queue, cache),
    )


def _behind(queue: list[tuple[Age, Candidate, Verification | None]], cache: Cache) -> tuple[tuple[str, int | None], ...]:
    """Return what was left in the queue, oldest first, with the step as far as a name or an earlier look tells it."""
    found: list[tuple[str, int | None]] = []
    for _, candidate, verified in heapq.nsmallest(MOST_OLDER, queue, key=lambda row: row[0]):
        known = verified or cache.get(candidate.path, candidate.identity)
        step = known.step if known is not None else candidate.named.step if candidate.named is not None else None
        found.append((candidate.path, step))
    return tuple(reversed(found))


class _Tally:
    """What was refused so far, and why."""

    def __init__(self) -> None:
        self.torn: list[tuple[str, Identity, str]] = []
        self.fenced: list[tuple[str, str]] = []
        self.unverifiable: list[tuple[str, str]] = []
        self.unknown: list[tuple[str, str]] = []
        self.poisoned: list[tuple[str, str]] = []

    def refuse(self, found: Verification) -> None:
        why = (found.path, found.reason)
        if found.verdict in (Verdict.BAD, Verdict.INCOMPLETE, Verdict.DANGEROUS):
            self.torn.append((found.path, found.identity, found.reason))
            self.fenced.append(why)
        elif found.verdict is Verdict.UNVERIFIABLE:
            self.unverifiable.append(why)
        elif found.verdict is not Verdict.FOREIGN:
            self.unknown.append(why)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads candidates in full, within the two deadlines (seconds of `clock`)."""

    cache: Cache
    throttle: Throttle | None
    interrupted: Callable[[], bool]
    clock: Callable[[], float]
    budget_ends: float
    limit_ends: float

    def at_limit(self) -> bool:
        return self.interrupted() or self.clock() >= self.limit_ends

    def at_budget(self) -> bool:
        return self.at_limit() or self.clock() >= self.budget_ends

    def read(self, candidate: Candidate) -> Verification:
        known = self.cache.get(candidate.path, candidate.identity)
        if known is not None and known.verdict in (Verdict.UNVERIFIABLE, Verdict.FOREIGN):
            return known
        believed = known is not None and known.level in ("layout", "structure")
        found = verify(candidate.path, throttle=self.throttle, interrupted=self.at_budget if believed else self.at_limit)
        if believed and known is not None and found.verdict is Verdict.UNKNOWN and found.identity == known.identity:
            directory = verify(candidate.path, bulk=False, interrupted=self.at_limit)
            return known if directory.verdict is Verdict.VERIFIED and directory.identity == known.identity else directory
        self.cache.put(found)
        return found
