"""What may go wrong with a job: each ailment is a small value that decides whether, where and how it ends a trial (a Strike, or None)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.core.model import Cause, Phase
from tests.simulation.faults import Strike

if TYPE_CHECKING:
    from tests.simulation.world import Trial, World

ALWAYS = 10**6
GIB = 1 << 30
#: Of the kinds of CHECKPOINT_MISMATCH (faults.py), the words that another number of ranks saved.
SAYS_OTHER_RANKS = 2


@dataclass(frozen=True, slots=True)
class Early:
    """Before the first step of the attempt, `times` times, in `kinds` ways one after the other.

    stepless: what runs makes no step that is seen, so that nobody knows that it was before the first.
    """

    causes: tuple[Cause, ...]
    times: int = ALWAYS
    kinds: int = 1
    phase: Phase = Phase.INIT
    sure: bool = True
    after: int = 0  # only once the run has come this far
    kind: int = 0
    stepless: bool = False

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike while there are times left."""
        if met >= self.times or world.high < self.after:
            return None
        cause = self.causes[met % len(self.causes)]
        rank, kind = (met % trial.ranks if self.kinds > 1 else 0), self.kind or met % self.kinds
        return Strike(cause, -1, self.phase, rank, kind, self.sure, stepless=self.stepless)


@dataclass(frozen=True, slots=True)
class Place:
    """At one absolute step, `times` times, always in the same way."""

    cause: Cause
    at: int
    times: int = ALWAYS
    sure: bool = True
    kind: int = 0

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike on the way through."""
        del world
        if met >= self.times or trial.base >= self.at:
            return None
        return Strike(self.cause, self.at, Phase.TRAIN, 0, self.kind, self.sure)


@dataclass(frozen=True, slots=True)
class Wear:
    """Again and again: each time `gain` steps further than ever (gains), or some steps after the start, no further than before."""

    cause: Cause
    gain: int
    gains: bool = True
    times: int = ALWAYS
    sure: bool = True
    kinds: int = 1
    moves: bool = False  # another rank, and so another GPU, each time

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike where that is."""
        if met >= self.times:
            return None
        if self.gains or not met:
            at = max(world.high, trial.base) + self.gain
        else:
            at = trial.base + 1 + (self.gain * (met * 7 + 3)) // 5 % max(world.high - trial.base, 1)
        rank = met % trial.ranks if self.moves else 0
        return Strike(self.cause, at, Phase.TRAIN, rank, met % self.kinds, self.sure, gpu=trial.gpus[rank] if trial.gpus[rank:] else "")


@dataclass(frozen=True, slots=True)
class TooManyLeftOut:
    """In each attempt, after so many steps, the script has left out more bad batches than it may."""

    cause: Cause
    after: int

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike each time."""
        del world, met
        return Strike(self.cause, trial.base + self.after, Phase.TRAIN, facts=(("left_out", "11"),))


@dataclass(frozen=True, slots=True)
class Hunger:
    """More memory than there is: above a micro-batch of `fits`, unless activations are computed twice or state is kept outside.

    pieces: the memory would suffice if it were in one piece. late: it shows that many steps after the start, 0: at the first. sizes: the
    message has them, and each sample needs the same.
    """

    fits: int
    pieces: bool = False
    late: int = 0
    sure: bool = True
    sizes: bool = False

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike where the micro-batch does not fit."""
        del world, met
        in_one_piece = "expandable_segments" in trial.overrides.get("env:PYTORCH_CUDA_ALLOC_CONF", "")
        pieces = self.pieces and not in_one_piece
        room = self.fits
        for switch in ("activation_checkpointing", "cpu_offload", "mixed_precision"):
            room *= 2 if switch in trial.overrides else 1
        if trial.micro <= room and not pieces:
            return None
        unused = 20 * GIB if pieces else GIB // 4
        facts = (("asked", str(2 * GIB)), ("capacity", str(80 * GIB)), ("reserved_unallocated", str(unused)))
        if self.sizes and not pieces:
            need = int(trial.micro * 80 * GIB / (room + 0.5))
            facts = (("asked", str(need - 8 * GIB)), ("allocated", str(8 * GIB)), ("free", str(72 * GIB)), *facts[1:2])
        if self.late:
            return Strike(Cause.CUDA_OOM, trial.base + self.late, Phase.TRAIN, sure=self.sure, facts=facts)
        return Strike(Cause.CUDA_OOM, -1, Phase.INIT, sure=self.sure, facts=facts)


@dataclass(frozen=True, slots=True)
class Stranger:
    """Another process holds most of the GPU's memory until `until_t`."""

    until_t: float

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike as long as it is there."""
        del met
        if world.t >= self.until_t:
            return None
        unused = 20 * GIB if trial.number % 2 else 0
        facts = (("capacity", str(80 * GIB)), ("other_bytes", str(60 * GIB)), ("other_pids", "777"), ("reserved_unallocated", str(unused)))
        return Strike(Cause.CUDA_OOM, -1, Phase.INIT, facts=facts)


@dataclass(frozen=True, slots=True)
class Workers:
    """More loader workers than main memory, or /dev/shm, has room for."""

    cause: Cause
    fits: int
    after: int
    sure: bool = True

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike a different number of steps after the start each time, and never further than the first time."""
        del world
        if trial.workers <= self.fits:
            return None
        return Strike(self.cause, trial.base + max(self.after - 13 * met, 1), Phase.TRAIN, sure=self.sure)


@dataclass(frozen=True, slots=True)
class BadGpu:
    """A GPU that fails whenever it is used, some steps after the start."""

    cause: Cause
    uuid: str
    after: int
    xid: int = 0
    sure: bool = True
    names: bool = True  # the evidence names the GPU; else only the rank's place does

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike the rank that uses it."""
        if self.uuid not in trial.gpus or world.repaired:
            return None
        known = ("gpu_uuid", self.uuid) if self.names else None, ("xid", str(self.xid)) if self.xid else None
        facts = tuple(fact for fact in known if fact is not None)
        at = trial.base + max(self.after - 13 * met, 1)
        return Strike(self.cause, at, Phase.TRAIN, trial.gpus.index(self.uuid), sure=self.sure, facts=facts, gpu=self.uuid)


@dataclass(frozen=True, slots=True)
class BadFile:
    """A checkpoint whose reading ends the process."""

    cause: Cause
    sure: bool = True
    kinds: int = 1

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike whoever loads one."""
        file = world.files.get(trial.path)
        if file is None or not file.breaks:
            return None
        return Strike(self.cause, -1, Phase.LOAD, 0, (met // 2) % self.kinds, self.sure)


@dataclass(frozen=True, slots=True)
class BoundToRanks:
    """A loader that refuses what another number of ranks saved: all that is there was saved by the ranks of the command."""

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike whoever loads with fewer."""
        del met
        saved = world.job.ranks + world.job.elsewhere
        if not trial.path or trial.world == saved:
            return None
        facts = (("saved", str(saved)), ("current", str(trial.world)))
        return Strike(Cause.CHECKPOINT_MISMATCH, -1, Phase.LOAD, kind=SAYS_OTHER_RANKS, facts=facts, remedy="all_ranks")


@dataclass(frozen=True, slots=True)
class Race:
    """A rank reads what another one is writing, `times` times: nothing is wrong with the file."""

    times: int = ALWAYS

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike as the ranks load."""
        del trial, world
        facts = (("race_writer", "0"), ("path", "last.pt"))
        return Strike(Cause.CHECKPOINT_CORRUPT, -1, Phase.LOAD, 0, facts=facts) if met < self.times else None


@dataclass(frozen=True, slots=True)
class Spoiled:
    """Parameters that are no numbers from step `start` on, by chance (`times` 1) or by the data there; what is saved then holds them."""

    start: int
    lag: int
    times: int = ALWAYS
    sure: bool = True

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike a little after the start from a spoiled checkpoint, or after the place in the data."""
        file = world.files.get(trial.path)
        if file is not None and file.nan:
            return Strike(Cause.NAN_LOSS, trial.base + 1 + 20 * (met % 3), Phase.TRAIN, sure=self.sure)
        if met >= self.times or trial.base > self.start or self._skipped(trial):
            return None
        return Strike(Cause.NAN_LOSS, self.start + self.lag, Phase.TRAIN, sure=self.sure)

    def spoils(self, trial: Trial, step: int) -> bool:
        """Whether what this trial saves at a step holds what is no number."""
        return trial.base <= self.start < step and not self._skipped(trial) and trial.number <= self.times

    def _skipped(self, trial: Trial) -> bool:
        first, _, last = trial.overrides.get("skip_window", "").partition(":")
        return bool(first) and int(first) - self.lag <= self.start <= int(last)


@dataclass(frozen=True, slots=True)
class Outage:
    """Storage, or a network, that does not answer between two times."""

    cause: Cause
    from_t: float
    until_t: float
    kinds: int = 1
    early: bool = False
    sure: bool = True

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike whatever runs then; what began before it runs into it."""
        if world.t >= self.until_t:
            return None
        if self.early and not met:
            return Strike(self.cause, -1, Phase.INIT, sure=self.sure)
        job = world.job
        left_s = max(self.from_t - world.t, 0.0)
        into = int(left_s / job.sample_s * job.stride) if left_s else 1 + (met * 17) % 60
        return Strike(self.cause, trial.base + max(into, 1), Phase.TRAIN, 0, met % self.kinds, self.sure)
