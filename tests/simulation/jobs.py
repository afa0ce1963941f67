"""Which jobs there are: for each cause the themes that it may come with, drawn by a seeded generator.

A theme is a way of failing; what surrounds it (ranks, GPUs, knobs,
settings, checkpoints, signals, crashes of the supervisor) is drawn independently of it, so that each theme meets each surrounding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from supervisor.core.model import FROM_OUTSIDE, Cause, Gpu, HangKind, Knob, Phase
from supervisor.strategies.network import OPTIONAL
from tests.simulation import world as w
from tests.simulation.ailments import (
    ALWAYS,
    BadFile,
    BadGpu,
    BoundToRanks,
    Early,
    Hunger,
    Outage,
    Place,
    Race,
    Spoiled,
    Stranger,
    TooManyLeftOut,
    Wear,
    Workers,
)
from tests.simulation.networks import EARLY, SHOWN, TRANSPORTS, BadInterface, BadTransport, HangingGpu, Late, Unsynced
from tests.simulation.world import File, Happening, Job
from tests.support.policies import policy_from

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.world import Ailment

    Theme = Callable[["Draft"], tuple[Ailment, ...]]

#: A hang at the exit ends a training that is over; no job of the simulator hangs there.
HANGS = tuple(kind for kind in HangKind if kind is not HangKind.EXIT)
#: Of the kinds of USER_CODE (faults.py), the one that may pass.
MISSING_FILE = 3
MICRO = (1, 2, 3, 4, 6, 8, 12, 16, 32)
#: Xids of which NVIDIA says that the GPU may be used again (health/nvidia/xids.py), and some that it does not say that of.
USED_AGAIN, NOT_AGAIN = (13, 31, 32, 39), (0, 48, 62, 79)


#: What the user's own rows set: it changes nothing in this world.
OF_ROWS = "env:SCRIPT_MODE"


class Draft:
    """A job in the making: what a theme may read and set. `policy` and `job` are fields of those classes."""

    def __init__(self, rng: Random, cause: Cause) -> None:
        """Draw the surroundings."""
        self.rng, self.cause = rng, cause
        self.ranks = rng.choice((1, 2, 2, 3, 4, 8))
        self.elsewhere = self.ranks if self.odds(0.12) else 0
        spare = rng.choice((0, 0, 1, 2))
        count = 0 if self.odds(0.1) else self.ranks + spare
        self.gpus = tuple(Gpu(i, f"GPU-{i}", f"0000:{i + 16:02x}:00.0") for i in range(count))
        self.happens: tuple[Happening, ...] = ()  # beside what is drawn
        self.declared = self.odds(0.85)
        self.job: dict[str, Any] = {
            "micro": rng.choice(MICRO),
            "accum": rng.choice((1, 1, 2, 4)),
            "workers": rng.choice((0, 2, 4, 8)),
            "total": rng.randrange(400, 1400),
            "save_every": rng.randrange(30, 120),
            "stride": rng.choice((1, 1, 1, 2)),
            "sample_s": rng.choice((2.0, 5.0, 5.0)),
            "sight": rng.choices((w.ABSOLUTE, w.COUNTED, w.BLIND), (8, 1, 1))[0],
            "batchnorm": self.odds(0.1),
            "overwrites": self.odds(0.15),
            "saves_on_request": self.odds(0.3),
            "untidy": rng.choice((0.0, 0.1, 0.3)),
            "names_older": self.odds(0.8),
        }
        # no draw: the other jobs stay as they are
        self.replica = 2 if self.ranks % 2 == 0 and self.job["total"] % 4 == 0 else 1
        self.policy: dict[str, Any] = {
            "checkpoints_declared": self.declared,
            "nodes": 2 if self.elsewhere else 1,
            "replica_size": self.replica,
            "batch_change": not self.odds(0.05),
            "restart": {"batch_drift": self.odds(0.3)},
            "gpus": {"minimum": rng.choice((0, 1, max(self.ranks - self.replica, 1)))},
            "resumes_itself": not self.declared and self.odds(0.7),
            "health": self.odds(0.6),
            "evict_on": ("gpu_ecc",) if self.odds(0.3) else (),
            "on_hang": rng.choice(("", "auto", "warn", "restart")),
        }
        if self.odds(0.22):
            self.policy["max_restarts"] = rng.choice((0, 0, 1, 1, 2))
        elif self.odds(0.1):
            self.policy["restart"]["max_attempts"] = rng.choice((1, 2, 3, 5))

    def odds(self, share: float) -> bool:
        """Draw whether something is so."""
        return self.rng.random() < share

    def sure(self, share: float = 0.75) -> bool:
        """Draw whether the fault shows clearly."""
        return self.odds(share)

    def recurring(self) -> None:
        """Let the run end at few equal failures, so that it is seen to."""
        self.policy["recurring_stop"] = self.rng.choice((3, 4, 6, 10))
        self.policy.pop("max_restarts", None)
        self.policy["restart"].pop("max_attempts", None)
        self.policy["restart"]["intensity"] = self.rng.choice((3, 12))

    def files(self, bad: int = 0, count: int = 0) -> None:
        """Put checkpoints of an earlier run there; the newest `bad` of them break whoever reads them."""
        count = count or self.rng.randrange(1, 5)
        steps = [40 * (i + 1) for i in range(count)]
        self.job["initial"] = tuple((f"old-{step}.pt", File(step, breaks=i >= count - bad)) for i, step in enumerate(steps))
        self.policy["checkpoints_declared"] = self.declared = True

    def knobs(self, *, switches: bool = False, window: bool = False, batch: bool | None = None, workers: bool | None = None) -> None:
        """Declare knobs, or let a program be recognised."""
        rng, job = self.rng, self.job
        knobs: list[Knob] = []
        if batch if batch is not None else self.odds(0.6):
            by = rng.choice(("declared", "declared", "hf_trainer"))
            counts = rng.choice((("gpu", "rank"), ("gpu", "rank"), ("gpu", "world"), ("gpu", "derived"), ("global", "rank")))
            world = (self.ranks + self.elsewhere) // self.replica
            size = job["micro"] * (job["accum"] * world if counts[0] == "global" else 1)
            accum = "" if counts[1] == "derived" else str(job["accum"] * (world if counts[1] == "world" else 1))
            seen = by == "declared"
            knobs += [
                Knob("batch_size", str(size), "--batch-size", by, seen, counts[0]),
                Knob("grad_accum", accum, "--grad-accum", by, seen, counts[1]),
            ]
            if not seen:
                job["program"] = by
        if workers if workers is not None else self.odds(0.5):
            knobs.append(Knob("num_workers", str(job["workers"]), "--workers"))
        if switches:
            both = ("activation_checkpointing", "cpu_offload")
            names = rng.choice((both[:1], both, (*both, "mixed_precision"), ("mixed_precision",)))
            knobs += [Knob(name, "", f"--{name}") for name in names]
        if window:
            knobs.append(Knob("skip_window", "", "--skip"))
        self.policy["knobs"] = tuple(knobs)

    def several(self) -> None:
        """Let there be two ranks at least."""
        if self.ranks > 1:
            return
        self.ranks = 2
        self.elsewhere = self.elsewhere and 2
        self.gpus = tuple(Gpu(i, f"GPU-{i}") for i in range(2)) if self.gpus else ()

    def permits(self, *wanted: str, theirs: tuple[str, ...] = ()) -> None:
        """Draw network.allow, most often with what would help, and now and then a variable that the user set, of `theirs`."""
        self.policy["network"] = {"allow": tuple(name for name in OPTIONAL if self.odds(0.8 if name in wanted else 0.25))}
        if theirs and self.odds(0.12):
            self.policy["variables"] = ((self.rng.choice(theirs), "theirs"),)

    def happenings(self) -> tuple[Happening, ...]:
        """Draw what comes from outside."""
        rng = self.rng
        happenings: list[Happening] = []
        if self.odds(0.3):
            whats = ["crash", "crash", "crash", "crash", "agent", "guardian", "nodes", "journal", "stacks", "vanish", "tear"]
            whats += ["peer_restart", "peer_stop", "peer_silent"] if self.elsewhere else []
            happenings = [
                Happening(rng.randrange(1, 4), rng.uniform(0.0, 900.0), rng.choice(whats), rng.randrange(8))
                for _ in range(rng.randrange(1, 4))
            ]
        if self.odds(0.35):
            how = rng.choice(("reset", "reset", "reset", "reset", "errors", "errors", "host"))
            happenings.append(Happening(rng.randrange(1, 4), rng.uniform(0.0, 900.0), f"sicken {how}", rng.randrange(8)))
        if self.odds(0.15):
            happenings.append(Happening(rng.randrange(1, 4), rng.uniform(0.0, 900.0), f"hang {rng.choice(HANGS)}", rng.choice((90, 2000))))
        if self.odds(0.2):
            signum = rng.choice((1, 2, 10, 12, 15, 15))
            after_s = rng.uniform(0.0, rng.choice((1500.0, 5.0)))  # one in two as it starts, before its ranks are there
            at = Happening(rng.randrange(1, 4), after_s, f"signal {signum}", rng.choice((-1.0, 0.5, 10.0, 30.0, 120.0)))
            happenings += [at] + [replace(at, after_s=at.after_s + rng.uniform(0.01, 20.0)) for _ in range(rng.choice((0, 0, 1, 2)))]
        return tuple(happenings)

    def build(self, theme: str, ailments: tuple[Ailment, ...]) -> Job:
        """Return the job."""
        if "knobs" not in self.policy:
            self.knobs()
        happenings = (*self.happenings(), *self.happens)
        if self.job["total"] % 14 == 0 and self.cause not in FROM_OUTSIDE | {Cause.NONE}:  # no draw: the other jobs stay as they are
            self.policy["recover"] = ((self.cause.value, ((OF_ROWS, "careful"),)),)
        policy = policy_from(self.policy)
        return Job(theme, policy, self.ranks, self.elsewhere, self.gpus, ailments=ailments, happenings=happenings, **self.job)


def _once(d: Draft) -> tuple[Ailment, ...]:
    return (Wear(d.cause, d.rng.randrange(5, 90), times=d.rng.randrange(1, 4), sure=d.sure(), kinds=d.rng.choice((1, 2))),)


def _recurs(d: Draft) -> tuple[Ailment, ...]:
    d.recurring()
    d.job["sight"] = w.ABSOLUTE
    if d.odds(0.9):  # no checkpoint is made any more: steps alone are no progress
        d.files()
        d.job["save_every"] = 10**6
        d.policy["recurring_stop"] = d.rng.choice((3, 4))
        d.policy["restart"]["intensity"] = 12
    return (Wear(d.cause, d.rng.randrange(12, 60), sure=d.sure(0.3), moves=d.odds(0.3)),)


def _place(d: Draft) -> tuple[Ailment, ...]:
    return (Place(d.cause, d.rng.randrange(3, 300), sure=d.sure(0.3), kind=d.rng.randrange(2)),)


def _stuck(d: Draft) -> tuple[Ailment, ...]:
    if d.odds(0.6):
        d.recurring()
        d.policy["recurring_stop"] = d.rng.choice((3, 3, 4, 10))
    return (Wear(d.cause, d.rng.randrange(50, 300), gains=False, sure=d.sure(0.4), kinds=d.rng.choice((1, 1, 2))),)


def _answers(d: Draft) -> tuple[Ailment, ...]:
    return (Early((d.cause,), sure=d.sure(), kind=1, stepless=True),)


def _early(d: Draft) -> tuple[Ailment, ...]:
    phase = d.rng.choice((Phase.IMPORT, Phase.INIT, Phase.UNKNOWN))
    return (Early((d.cause,), kinds=d.rng.choice((1, 3)), phase=phase, sure=d.sure()),)


def _left_out(d: Draft) -> tuple[Ailment, ...]:
    return (TooManyLeftOut(d.cause, d.rng.randrange(5, 90)),)


def _away(d: Draft) -> tuple[Ailment, ...]:
    d.job["sight"] = w.ABSOLUTE
    after, kind = d.rng.randrange(20, 60), MISSING_FILE if d.cause is Cause.USER_CODE else 0
    missing = Early((d.cause,), times=d.rng.choice((1, 2, 4, 40)), after=after, kind=kind, phase=Phase.IMPORT, sure=d.sure())
    return (Wear(Cause.KILLED_UNKNOWN, after, times=1), missing)


def _early_mixed(d: Draft) -> tuple[Ailment, ...]:
    others = (Cause.NCCL_NETWORK, Cause.RENDEZVOUS, Cause.GLOO_ERROR, Cause.IO_ERROR)
    return (Early((d.rng.choice(others), d.rng.choice(others), d.cause), sure=d.sure()),)


def _early_then_fine(d: Draft) -> tuple[Ailment, ...]:
    return (Early((d.cause,), times=d.rng.randrange(1, 3), sure=d.sure(), after=d.rng.choice((0, 0, 50))), *_once(d))


def _hunger(d: Draft) -> tuple[Ailment, ...]:
    d.job["micro"] = d.rng.choice((4, 6, 9, 12, 15, 32))
    d.knobs(switches=d.odds(0.6), batch=d.odds(0.7))
    fits = d.rng.choice((0, 1, 2, 3, 4, 8))
    return (Hunger(fits, pieces=d.odds(0.35), late=d.rng.choice((0, 0, 5, 30)), sure=d.sure(0.85), sizes=d.odds(0.4)),)


def _stranger(d: Draft) -> tuple[Ailment, ...]:
    d.knobs(batch=d.odds(0.7))
    return (Stranger(d.rng.choice((5.0, 60.0, 10**6))),)


def _workers(d: Draft) -> tuple[Ailment, ...]:
    d.job["workers"] = d.rng.choice((1, 2, 4, 8, 16))
    d.knobs(workers=d.odds(0.75))
    return (Workers(d.cause, d.rng.choice((-1, 0, 1, 2, 4)), d.rng.randrange(60, 90), sure=d.sure()),)


def _bad_gpu(d: Draft) -> tuple[Ailment, ...]:
    d.gpus = d.gpus or tuple(Gpu(i, f"GPU-{i}") for i in range(d.ranks))
    many = d.rng.choice((1, 1, 2))
    bad = d.rng.sample([g.uuid for g in d.gpus[: d.ranks]], min(many, d.ranks))
    xids = d.rng.choice((USED_AGAIN, NOT_AGAIN)) if d.cause in GPU else (0,)
    names, sure = d.odds(0.7), d.sure(0.85)
    if d.odds(0.6):
        d.job["micro"] = 6
        d.knobs(batch=True)
    xid = d.rng.choice(xids)
    return tuple(BadGpu(d.cause, uuid, d.rng.randrange(10, 120), xid, sure, names) for uuid in bad)


def _several_gpus(d: Draft) -> tuple[Ailment, ...]:
    d.ranks = max(d.ranks, 2)
    d.elsewhere = 0
    d.policy["nodes"] = 1
    d.gpus = tuple(Gpu(i, f"GPU-{i}") for i in range(d.ranks))
    return (Wear(d.cause, d.rng.randrange(60, 200), gains=False, sure=d.sure(0.85), moves=True),)


def _bad_file(d: Draft) -> tuple[Ailment, ...]:
    d.files(bad=d.rng.choice((1, 1, 2, 3)), count=d.rng.randrange(1, 6))
    return (BadFile(d.cause, sure=d.sure(0.8), kinds=d.rng.choice((1, 2))),)


def _bound_to_ranks(d: Draft) -> tuple[Ailment, ...]:
    """A GPU fails, its rank is given up, and the loader refuses; in most jobs somebody puts the GPU back into use in between."""
    d.several()
    d.elsewhere = 0
    d.gpus = tuple(Gpu(i, f"GPU-{i}") for i in range(d.ranks))
    d.files(count=d.rng.randrange(1, 4))
    d.policy |= {"nodes": 1, "gpus": {"minimum": 1}, "restart": {"batch_drift": True}, "max_restarts": None}
    d.knobs(batch=d.odds(0.5))
    bad = d.rng.choice(d.gpus).uuid
    d.happens = tuple(Happening(attempt, 1.0, "repair", d.rng.randrange(2)) for attempt in (2, 3) if d.odds(0.6))
    return (BadGpu(Cause.GPU_LOST, bad, d.rng.randrange(10, 120)), BoundToRanks())


def _race(d: Draft) -> tuple[Ailment, ...]:
    d.files(bad=0, count=d.rng.randrange(1, 4))
    d.job["total"] += d.job["total"] % 14 == 0  # no row of the user's, which would answer first
    return (Race(d.rng.choice((1, ALWAYS))),)


def _spoiled(d: Draft) -> tuple[Ailment, ...]:
    d.policy["checkpoints_declared"] = d.declared = True
    d.knobs(window=d.odds(0.9))
    start = d.rng.randrange(60, 350)
    return (Spoiled(start, d.rng.randrange(1, 80), times=d.rng.choice((1, 10**6, 10**6)), sure=d.sure(0.85)),)


def _outage(d: Draft) -> tuple[Ailment, ...]:
    until = d.rng.choice((700.0, 2500.0, 10**6, 10**6))
    return (Outage(d.cause, d.rng.uniform(0.0, 400.0), until, kinds=d.rng.choice((1, 3)), early=d.odds(0.3)),)


def _transport(d: Draft) -> tuple[Ailment, ...]:
    d.permits("p2p_disable", "ib_disable", "shm_disable", theirs=tuple(name.removeprefix("env:") for name, _ in TRANSPORTS.values()))
    bad = d.rng.choice((*TRANSPORTS, "SHM", "SHM"))  # it is the last that is tried
    others = tuple(name for name in TRANSPORTS if name != bad and d.odds(0.3))
    logs = (bad, *others) if d.odds(0.6) else ()
    names = bad != "P2P" and d.odds(0.4)
    return (BadTransport(d.cause, bad, d.rng.randrange(40, 150), names, logs, sure=d.sure()),)


def _interface(d: Draft) -> tuple[Ailment, ...]:
    d.permits("interface", theirs=("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"))
    until, early = d.rng.choice((700.0, 2500.0, 10**6)), d.odds(0.2)
    gain = d.rng.randrange(5, 150)
    return (BadInterface(d.cause, gain, until, down=d.odds(0.7), other_works=d.odds(0.7), early=early, sure=d.sure()),)


def _late(d: Draft) -> tuple[Ailment, ...]:
    d.several()
    d.permits("longer_timeout")
    d.job["sight"] = w.ABSOLUTE
    own, knob = d.rng.choice(((0, False), (0, False), (0, False), (900, False), (900, True)))
    d.knobs()
    if knob:
        d.policy["knobs"] += (Knob("group_timeout", str(own), "--ddp-timeout"),)
    phase, needs = d.rng.choice((Phase.CHECKPOINT, Phase.EVAL)), d.rng.choice((2000, 5000, 9000, 20_000))
    return (Late(d.cause, d.rng.randrange(5, 150), needs, phase, own, knob, sure=d.sure()),)


def _hanging_gpu(d: Draft) -> tuple[Ailment, ...]:
    d.several()
    d.gpus = d.gpus or tuple(Gpu(i, f"GPU-{i}") for i in range(d.ranks))
    d.permits()
    d.job["sight"] = w.ABSOLUTE
    bad = d.rng.choice(d.gpus[: d.ranks]).uuid
    return (HangingGpu(d.cause, bad, d.rng.randrange(40, 150), sure=d.sure(0.85)),)


def _unsynced(d: Draft) -> tuple[Ailment, ...]:
    d.several()
    d.permits(theirs=("TORCH_DISTRIBUTED_DEBUG",))
    d.job["sight"] = w.ABSOLUTE
    at = d.rng.choice((1, EARLY, d.rng.randrange(20, 150)))
    return (Unsynced(d.rng.choice(tuple(SHOWN)), at, is_named=d.odds(0.3), sure=d.sure()),)


def _none(d: Draft) -> tuple[Ailment, ...]:
    del d
    return ()


GPU = (Cause.GPU_ECC, Cause.GPU_LOST, Cause.GPU_XID_OTHER, Cause.NVLINK)
_MEMORY = (Cause.HOST_OOM, Cause.SHM_EXHAUSTED, Cause.DATALOADER_WORKER)
_NATIVE = (Cause.CUDA_ILLEGAL_ACCESS, Cause.SEGFAULT, Cause.UNKNOWN_NATIVE_ABORT)
_STORAGE = (Cause.DISK_FULL, Cause.IO_ERROR, Cause.STORAGE_REMOTE)
_NETWORK = (Cause.NCCL_TIMEOUT, Cause.NCCL_NETWORK, Cause.GLOO_ERROR, Cause.RENDEZVOUS)
ANY: tuple[Theme, ...] = (_once, _recurs, _place, _stuck, _early, _early_then_fine)
#: What else a cause may come with; named more often, it comes more often.
OF_CAUSE: dict[Cause, tuple[Theme, ...]] = {
    Cause.CUDA_OOM: (_hunger, _hunger, _hunger, _hunger, _stranger, _stranger, _recurs, _place),
    **dict.fromkeys(_MEMORY, (_workers, _workers, _workers, _place, _place, _place, _recurs)),
    **dict.fromkeys(GPU, (_bad_gpu, _bad_gpu, _bad_gpu, _several_gpus)),
    **dict.fromkeys(_NATIVE, (_bad_gpu, _several_gpus, _bad_file, _bad_file, _bad_file, *(_recurs,) * 3)),
    Cause.HANG_NO_ERROR: (_bad_file, _bad_file, _bad_file, _recurs),
    Cause.CHECKPOINT_CORRUPT: (_bad_file, _bad_file, _bad_file, _recurs, _race),
    Cause.CHECKPOINT_MISMATCH: (_bound_to_ranks, _bound_to_ranks, _bound_to_ranks),
    **dict.fromkeys(_STORAGE, (_outage, _outage, _early_mixed)),
    **dict.fromkeys(_NETWORK, (_outage, _early_mixed, _early_mixed)),
    Cause.USER_CODE: (_answers, _answers, _away, _away),
    Cause.UNKNOWN: (_answers, _answers),
    Cause.DEPENDENCY: (_away, _away),
    Cause.DATA_ERROR: (_away, _away, _left_out),
    Cause.NAN_LOSS: (_spoiled, _spoiled, _spoiled, _spoiled, _place, _left_out),
    Cause.NONE: (_none,),
}
#: Themes in the place of those above, in most jobs of their cause: what is wrong between the ranks.
BETWEEN_RANKS: dict[Cause, tuple[Theme, ...]] = {
    Cause.NCCL_TIMEOUT: (_transport, _transport, _transport, _interface, _interface, _late, _hanging_gpu, _hanging_gpu, _place, _place),
    Cause.HANG_NO_ERROR: (_transport, _transport, _late, _hanging_gpu),
    Cause.NCCL_NETWORK: (_transport, _transport, _interface),
    Cause.GLOO_ERROR: (_interface, _late),
    Cause.RENDEZVOUS: (_interface,),
    Cause.DDP_UNSYNCED: (_unsynced,),
}


def drawn(rng: Random, cause: Cause) -> Job:
    """Return a job that this cause may befall."""
    draft = Draft(rng, cause)
    theme = rng.choice((*ANY, *OF_CAUSE.get(cause, ())))
    if cause in BETWEEN_RANKS and draft.odds(0.75 if cause is Cause.NCCL_TIMEOUT else 0.6):  # that ladder is the longest
        theme = rng.choice(BETWEEN_RANKS[cause])
    ailments = theme(draft)
    if draft.odds(0.1):
        ailments = (*ailments, Wear(Cause.KILLED_UNKNOWN, rng.randrange(40, 200), times=1))
    return draft.build(f"{cause}/{theme.__name__.strip('_')}", ailments)
