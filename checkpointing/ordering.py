"""Says which of two checkpoints is newer: by run, attempt and step, never by the step alone.

A step counts within one lineage. A run from scratch, a roll-back, or a counter that a resume resets saves lower steps later, and the
training continues from those:

    attempt 1 saves 800, 900, 1000 (NaN); the next attempt goes back to 800 and saves 850: the newest is 850
    run A saves 100000; run B begins from scratch in the same place and saves 500: the newest is 500

Files with a step of the whole run come before those with (epoch, step), and those before files with neither: an export or a best.pt must
not win against step 5000 because it was written later. Rolled-back checkpoints come last.

On one node the lineage of each checkpoint is known (checkpointing/lineage.py). A mirror holds the runs of several nodes, which began at
almost the same time and ran side by side. `Generations` treats such runs as one, in which the time of the save decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from checkpointing import step_names
from checkpointing.model import UNKNOWN_LINEAGE, Candidate, Lineage, Verification

if TYPE_CHECKING:
    from checkpointing.manifest.documents import Manifest

HERE, COPY, MIRROR = 0, 1, 2  # of the same step: the original comes before our copy of it, and that before a mirror's
_STEP, _WITHIN, _NEITHER = 0, 1, 2


class Age(NamedTuple):
    """The key that sorts the newest first; counts are negated for that."""

    is_rolled_back: bool
    kind: int
    began: int
    run: str
    attempt: int
    major: int
    minor: int
    distance: int
    mtime_ns: int
    name: str

    @property
    def lineage(self) -> Lineage:
        """The run and attempt that wrote it."""
        return Lineage(-self.began, self.run, -self.attempt)

    @property
    def position(self) -> tuple[bool, int, int, str, int, int, int]:
        """The part of the key that the files of one save have in common."""
        return self[:7]

    @property
    def step(self) -> int | None:
        """The step of the whole run."""
        return -self.major if self.kind == _STEP else None


@dataclass(frozen=True, slots=True)
class RollBack:
    """A step back from a checkpoint: what `last` and earlier lineages saved at its step or beyond is taken only if nothing else is left.

    If its step is unknown, only the checkpoint itself is meant: its `path`, and copies of its `content` (a manifest's id; "" unknown).
    `reason`: why, for a person.
    """

    last: Lineage
    step: int | None
    path: str
    content: str = ""
    reason: str = ""

    def covers(self, lineage: Lineage, step: int | None, path: str, content: str = "") -> bool:
        """Return whether the step back gave up a checkpoint."""
        if lineage > self.last:
            return False
        if self.step is not None and step is not None:
            return step >= self.step
        return content == self.content if content and self.content else path == self.path


@dataclass(frozen=True, slots=True)
class Order:
    """The lineages and steps back that one node knows. By default none: then the step decides."""

    lineage_of: Callable[[Candidate], Lineage] = lambda _candidate: UNKNOWN_LINEAGE
    roll_backs: tuple[RollBack, ...] = ()

    def of_candidate(self, candidate: Candidate, verification: Verification | None) -> Age:
        """Return the key of a candidate. `verification` None: it was not read yet, so its name counts."""
        step = verification.step if verification is not None else candidate.named.step if candidate.named is not None else None
        within = verification.within if verification is not None else None
        lineage = self.lineage_of(candidate)
        is_rolled_back = any(roll_back.covers(lineage, step, candidate.path) for roll_back in self.roll_backs)
        return age(
            step,
            within,
            lineage,
            mtime_ns=candidate.written_ns,
            name=candidate.path,
            is_rolled_back=is_rolled_back,
            epoch=step_names.epoch_in(candidate.path) if verification is None else verification.epoch,
        )

    def of_manifest(self, manifest: Manifest, distance: int, name: str) -> Age:
        """Return the key of a manifest's checkpoint."""
        lineage = manifest.about.lineage or UNKNOWN_LINEAGE
        is_rolled_back = any(roll_back.covers(lineage, manifest.step, manifest.path, manifest.id) for roll_back in self.roll_backs)
        return age(
            manifest.step,
            manifest.within,
            lineage,
            mtime_ns=manifest.saved_ns,
            distance=distance,
            name=name,
            is_rolled_back=is_rolled_back,
            epoch=manifest.epoch,
        )

    def newest_candidates(
        self, candidates: Iterable[Candidate], known: Callable[[Candidate], Verification | None] = lambda _candidate: None
    ) -> list[Candidate]:
        """Return candidates, the newest first. `known`: the verdict on one, None before it was read."""
        return sorted(candidates, key=lambda candidate: self.of_candidate(candidate, known(candidate)))

    def newest_manifests(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """Return the manifests of checkpoints on this node, the newest first."""
        return sorted(manifests, key=lambda manifest: self.of_manifest(manifest, HERE, manifest.path))


def age(  # noqa: PLR0913 -- the parts of a key
    step: int | None,
    within: tuple[int, int] | None,
    lineage: Lineage = UNKNOWN_LINEAGE,
    *,
    mtime_ns: int = 0,
    distance: int = HERE,
    name: str = "",
    is_rolled_back: bool = False,
    epoch: int | None = None,
) -> Age:
    """Return the key of a checkpoint. `distance`: HERE, COPY or MIRROR. `epoch`: tells two saves of one tick of the clock apart."""
    if step is not None:
        kind, major, minor = _STEP, -step, 0
    elif within is not None:
        kind, major, minor = _WITHIN, -within[0], -within[1]
    else:
        kind, major, minor = _NEITHER, -mtime_ns, -(epoch or 0)
    return Age(is_rolled_back, kind, -lineage.began, lineage.run, -lineage.attempt, major, minor, distance, -mtime_ns, name)


def saved_order(manifest: Manifest) -> tuple[int, int]:
    """Return the key that sorts the last save to the end, newer or not: a script may step back within an attempt.

    The time, then the step, because saves within one tick of a clock have one time.
    """
    return manifest.saved_ns, -1 if manifest.step is None else manifest.step


def is_farther(manifest: Manifest, other: Manifest) -> bool | None:
    """Return whether a checkpoint is farther in its training than another one, newer or not; None if their contents do not show it."""
    if manifest.step is not None and other.step is not None:
        return manifest.step > other.step
    if manifest.within is not None and other.within is not None:
        return manifest.within > other.within
    return manifest.epoch > other.epoch if manifest.epoch is not None and other.epoch is not None else None


class Generations:
    """The order of a job's checkpoints in its mirrors, which hold the runs of several nodes.

    Runs that overlap in time are one generation. Each node counts its own attempts, so within a generation the time of the save decides,
    and then the step. A generation of a single run is in the order of its attempts and steps.
    """

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        """Take all that the mirrors hold of a job."""
        listed = tuple(manifests)
        last_save: dict[Lineage, int] = {}  # of each run
        for manifest in listed:
            lineage = _lineage(manifest)
            if lineage is not None:
                run = replace(lineage, attempt=0)
                last_save[run] = max(last_save.get(run, 0), _saved_s(manifest))
        self._generations: dict[Lineage, int] = {}
        number, ends = 0, 0
        for run in sorted(last_save):
            if number == 0 or run.began >= ends:
                number += 1
            ends = max(ends, last_save[run])
            self._generations[run] = number
        numbers = list(self._generations.values())
        self._shared = {number for number in numbers if numbers.count(number) > 1}
        self._labelled = sorted((_saved_s(manifest), lineage) for manifest in listed if (lineage := _lineage(manifest)) is not None)

    def age(self, manifest: Manifest, name: str) -> Age:
        """Return the key of one of them."""
        number, run = self.generation(manifest)
        attempt = _saved_s(manifest) if number in self._shared else self._lineage(manifest).attempt
        lineage = Lineage(number, "" if number in self._shared else run, attempt)
        return age(manifest.step, manifest.within, lineage, mtime_ns=manifest.saved_ns, distance=MIRROR, name=name)

    def generation(self, manifest: Manifest) -> tuple[int, str]:
        """Return the number of its generation, 0 if unknown, and its run."""
        lineage = self._lineage(manifest)
        return self._generations.get(replace(lineage, attempt=0), 0), lineage.run

    def _lineage(self, manifest: Manifest) -> Lineage:
        """Return its lineage; for a checkpoint that a person sent by hand, the lineage of the last save before it."""
        own = _lineage(manifest)
        if own is not None:
            return own
        before = [lineage for saved_s, lineage in self._labelled if saved_s <= _saved_s(manifest)]
        return before[-1] if before else UNKNOWN_LINEAGE


def _saved_s(manifest: Manifest) -> int:
    return manifest.saved_ns // 10**9


def _lineage(manifest: Manifest) -> Lineage | None:
    """Return the recorded lineage; None for a checkpoint of no known run."""
    lineage = manifest.about.lineage
    return lineage if lineage is not None and lineage.began else None
