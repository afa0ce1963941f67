"""What may go wrong between ranks: transports, interfaces, ranks that are late or hang with their GPU, and ranks that do not do the same.

Each ailment strikes until its remedy is among the overrides of an attempt, and then no more. So only the right step ends it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from supervisor.core.model import Cause, Evidence, HangKind, Phase
from tests.simulation.faults import Strike

if TYPE_CHECKING:
    from tests.simulation.world import Trial, World

DEBUG, GROUP_TIMEOUT = "env:TORCH_DISTRIBUTED_DEBUG", "env:SUPERVISE_JOB_GROUP_TIMEOUT_S"
#: Transport of NCCL: the variable that switches it off, and how evidence may name it.
TRANSPORTS = {
    "P2P": ("env:NCCL_P2P_DISABLE", ()),
    "NET/IB": ("env:NCCL_IB_DISABLE", (("hca", "mlx5_0"),)),
    "SHM": ("env:NCCL_SHM_DISABLE", (("segment", "/dev/shm/nccl-aB3dE9"),)),  # noqa: S108  a name in a message
}
SOCKETS = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}
#: Kinds of Cause.DDP_UNSYNCED in faults.py: what torch shows without and with its debug level, and the kind that it then is.
UNUSED, TWICE, SIZES, COLLECTIVES = 3, 4, 5, 6
_TOLD = (("rank", "1"), ("operation", "BROADCAST"), ("peer", "0"), ("peer_operation", "ALLREDUCE"))
SHOWN = {
    UNUSED: ((("parameters", "4 5"),), (("names", "extra.bias, extra.weight"), ("parameters", "4 5")), UNUSED),
    TWICE: ((("index", "1"),), (("index", "1"), ("parameter", "body.bias")), TWICE),
    SIZES: ((("received", "16"), ("expected", "8")), _TOLD, COLLECTIVES),
}


def no_further(trial: Trial, world: World, gain: int, met: int) -> int:
    """Return the step of a strike: `gain` steps on at first, then elsewhere on the way to there, so that nothing is gained."""
    if not met:
        return max(world.high, trial.base) + gain
    return trial.base + 1 + (gain * (met * 7 + 3)) // 5 % max(world.high - trial.base, 1)


def hang(kind: HangKind, phase: Phase = Phase.UNKNOWN, rank: int | None = None, timeout_s: int = 0) -> tuple[tuple[str, str], ...]:
    """Return what two looks showed of a hang, as facts of the verdict."""
    facts = [("hang_kind", kind.value), ("hang_phase", phase.value), ("hang_ranks", "" if rank is None else str(rank))]
    return tuple(facts if not timeout_s else [*facts, ("hang_group_timeout_s", str(timeout_s))])


@dataclass(frozen=True, slots=True)
class BadTransport:
    """A transport over which collectives do not come back. names: the evidence names it; logs: a traced attempt shows those in use."""

    cause: Cause
    transport: str
    gain: int
    names: bool = False
    logs: tuple[str, ...] = ()
    sure: bool = True

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike while it is switched on."""
        variable, named = TRANSPORTS[self.transport]
        if trial.overrides.get(variable) == "1":
            return None
        facts = named if self.names else ()
        if self.cause is Cause.HANG_NO_ERROR:
            facts = (*facts, *hang(HangKind.WAITING))
        beside = (Evidence("nccl", "transports", " ".join(self.logs)),) if self.logs and trial.traced else ()
        at = no_further(trial, world, self.gain, met)
        return Strike(self.cause, at, Phase.TRAIN, sure=self.sure, facts=facts, beside=beside)


@dataclass(frozen=True, slots=True)
class BadInterface:
    """An interface that is down, or reaches not all nodes, until `until_t`; whether another one works."""

    cause: Cause
    gain: int
    until_t: float
    down: bool = True
    other_works: bool = True
    early: bool = False
    sure: bool = True

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike while the ranks use it."""
        family = "GLOO" if self.cause is Cause.GLOO_ERROR else "NCCL"
        moved = trial.overrides.get(f"env:{family}_SOCKET_IFNAME") == "eth1"
        if world.t >= self.until_t or (moved and self.other_works):
            return None
        state, reaches = ("down", "none") if self.down else ("up", "some")
        rows = [
            {"name": "eth0", "state": state, "reaches": reaches},
            {"name": "eth1", "state": "up", "reaches": "all" if self.other_works else "some"},
        ]
        rows[int(moved)]["used"] = "yes"
        beside = tuple(Evidence("network", "interface", row["name"], fields=tuple(row.items())) for row in rows)
        if self.early:
            return Strike(self.cause, -1, Phase.INIT, sure=self.sure, beside=beside)
        return Strike(self.cause, no_further(trial, world, self.gain, met), Phase.TRAIN, sure=self.sure, beside=beside)


@dataclass(frozen=True, slots=True)
class Late:
    """A rank that saves or evaluates for `needs_s`, while its peers wait for it and time out. own_s: the script's own timeout, 0: none."""

    cause: Cause
    gain: int
    needs_s: int
    phase: Phase = Phase.CHECKPOINT
    own_s: int = 0
    knob: bool = False  # the script's timeout is a knob
    sure: bool = True

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike while the groups give it less time than it needs."""
        usual = 1800 if self.cause is Cause.GLOO_ERROR else 600
        now_s = int(trial.overrides.get(GROUP_TIMEOUT, usual)) if not self.own_s else self.own_s
        now_s = int(trial.overrides.get("group_timeout", now_s)) if self.knob else now_s
        if now_s >= self.needs_s:
            return None
        late = trial.ranks - 1
        looked = self.cause is Cause.HANG_NO_ERROR or any(happening.text.startswith("hang") for happening in world.job.happenings)
        facts: tuple[tuple[str, str], ...] = (("timeout", str(now_s)),)
        facts = (*facts, *hang(HangKind.LATE, self.phase, late, now_s)) if looked else facts
        beside = (Evidence("heartbeat", "phase", self.phase.value, late),)
        at = no_further(trial, world, self.gain, met)
        kind = 2 if self.cause is Cause.GLOO_ERROR else 0
        return Strike(self.cause, at, Phase.TRAIN, 0, kind, self.sure, facts, beside=beside, remedy="longer_timeout")


@dataclass(frozen=True, slots=True)
class HangingGpu:
    """A GPU whose rank does not come to a collective, whenever it is used."""

    cause: Cause
    uuid: str
    gain: int
    sure: bool = True

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike the ranks that wait for it."""
        if self.uuid not in trial.gpus:
            return None
        late = trial.gpus.index(self.uuid)
        kind = HangKind.LATE if self.cause is Cause.NCCL_TIMEOUT else HangKind.STILL
        at = no_further(trial, world, self.gain, met)
        facts = hang(kind, Phase.TRAIN, late)
        return Strike(self.cause, at, Phase.TRAIN, late, 0, self.sure, facts, gpu=self.uuid, remedy="another_gpu")


@dataclass(frozen=True, slots=True)
class Unsynced:
    """Ranks that do not do the same thing, of a kind of SHOWN, from step `at` on. No override cures it."""

    kind: int
    at: int
    #: Whether torch names it at once.
    is_named: bool = False
    sure: bool = True

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Strike at the first steps, or some way after the start of an attempt; torch names what differs once it is told to."""
        at = self.at if self.at <= EARLY else no_further(trial, world, self.at, met)
        indices, named, then = SHOWN[self.kind]
        strike = Strike(Cause.DDP_UNSYNCED, max(at, trial.base + 1), Phase.TRAIN, sure=self.sure)
        if self.is_named or DEBUG in trial.overrides:
            return replace(strike, kind=then, facts=named, remedy="repair")
        return replace(strike, kind=self.kind, facts=indices, remedy="name_it")


#: torch finds unused parameters when the second step begins.
EARLY = 2
