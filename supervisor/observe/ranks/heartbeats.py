"""The attempt's heartbeat file: made by the supervisor, written by the ranks, read by the sampler.

Each slot belongs to one rank. The layout is the shim's (`instrument/_supervise_shim/layout.py`): one read is enough, whatever the rank is
doing, and the slot of a dead rank stays readable.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

from checkpointing.io import staging
from supervisor.core.model import Phase
from supervisor.core.values import Struct
from supervisor.instrument._supervise_shim import layout as shim

if TYPE_CHECKING:
    from pathlib import Path

#: How often those who watch the ranks take the heartbeats. They are read more often: what comes sooner than LEAST_APART_S is passed over.
SAMPLE_S, LEAST_APART_S = 1.0, 0.9
WORDS = shim.SLOT_BYTES // 8


class GpuMemory(Struct, frozen=True):
    """The memory of torch's allocator on a rank's GPU at the end of a step, in bytes."""

    t_ns: int  # when, CLOCK_MONOTONIC
    allocated: int
    reserved: int
    peak: int  # the most that was allocated since the script reset it, or the start
    split: int  # free in blocks that are used in part: it cannot go back to the GPU
    limit: int  # the GPU's memory, or the share of it that the script allows itself

    @property
    def unused(self) -> int:
        """The bytes that are reserved and not allocated."""
        return max(0, self.reserved - self.allocated)


class PartTimes(Struct, frozen=True):
    """How long a rank's training was in each part of a step (core/step_shares.py), since its training began: nanoseconds that only grow.

    disk_ns: of them on a disk. loader_ns: for the workers of a DataLoader. place: the line that waits for the GPU most, "" for none.
    """

    parts_ns: tuple[int, ...]
    disk_ns: int = 0
    loader_ns: int = 0
    place: str = ""


class RankHeartbeat(Struct, frozen=True):
    """The heartbeat of a rank: all of its slot (instrument/_supervise_shim/layout.py). Times are CLOCK_MONOTONIC ns; None is UNKNOWN.

    `steps` counts training steps seen in this process: 0 means that none was seen, not that none was made. `step` is absolute, as
    reported by the script or held by the optimizer. `phase` is IMPORT, INIT or LOAD only where that proves that no step was made.
    `asks`: the script asks whether to save, and `save_asked`: it was asked to. `went_on`: after that it trained on, or ended in order, with
    no save under way, and `saved`: by then a save had ended. `first_step`: the absolute step at which its training began. `total`: the one
    with which it ends, until it continues beyond it. `phase_limit_s`: the time that the script allows without a sign of life in the phase
    that it declared.
    `loss`: the one that the script reported last (worker.report), `losses`: how many it reported. `optimizer_made`: it made one of torch's.
    `ran`: more than imports ran (a process group, data, an evaluation, a checkpoint). `loader`: a DataLoader started worker processes.
    `world`: so many ranks its process group is to have. `over_ns`: since when its script was over without an exception, or had given up
    its process group, and no step followed. `life_ns`: when the last backward pass or collective began. `rounds`: it goes round in a loop
    in which no step is seen (an optimizer that torch does not know, collectives alone): so it is not known whether it trains.
    `imported`: the record of its imports holds all that it needs to train. `unlimited`: FSDP gathers without a limit. `pinned`: bytes.
    """

    local_rank: int
    rank: int
    pid: int
    start_ticks: int
    hello_ns: int
    phase: Phase
    phase_since_ns: int
    steps: int
    last_step_ns: int | None
    step: int | None
    step_source: str | None
    torch_loaded: bool
    backward_seen: bool
    save_asked: bool
    asks: bool = False
    went_on: bool = False
    saved: bool = False
    first_step: int | None = None
    total: int | None = None
    phase_limit_s: float | None = None
    loss: float | None = None
    losses: int = 0
    left_out: int = 0  # batches that all ranks left out (worker.agree)
    optimizer_made: bool = False
    ran: bool = False
    loader: bool = False
    world: int | None = None
    over_ns: int | None = None
    life_ns: int | None = None
    rounds: bool = False
    imported: bool = False
    unlimited: bool = False
    gpu_memory: GpuMemory | None = None
    pinned: int | None = None
    parts: PartTimes | None = None  # None: nothing was sampled

    @property
    def has_trained(self) -> bool:
        """Whether it made a step, or a backward pass."""
        return self.last_step_ns is not None or self.backward_seen

    @property
    def sign_ns(self) -> int | None:
        """When its last step ended; while none is seen, when the last backward pass or collective began."""
        return self.last_step_ns or self.life_ns

    @property
    def made_first_round(self) -> bool:
        """Whether it made its first step, or, without an optimizer of torch's, went round once in its loop."""
        return self.last_step_ns is not None or (self.rounds and not self.optimizer_made)

    @property
    def script_over(self) -> bool:
        """Whether nothing is left to train."""
        return self.over_ns is not None


def create(path: Path, slots: int) -> None:
    """Make the file for `slots` local ranks, and its directory.

    Every block is allocated, so a full /dev/shm is an OSError here and not a SIGBUS in a rank.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # written, not only truncated to its size: so every block is allocated, and a rank sees a whole file or none
    head = struct.pack("<3q", shim.MAGIC, shim.VERSION, slots)
    staging.write(str(path), head.ljust((1 + slots) * shim.SLOT_BYTES, b"\0"), is_durable=False)


def read(path: Path, *, now_ns: int | None = None) -> tuple[RankHeartbeat, ...]:
    """Return the beats of the slots that are claimed, by local rank; nothing if the file is gone, cannot be read or is not of the shim."""
    now = time.monotonic_ns() if now_ns is None else now_ns
    try:
        data = path.read_bytes()
    except OSError:  # of the reading too: EIO, ESTALE
        return ()
    words = struct.unpack_from(f"<{len(data) // 8}q", data)
    if len(words) < WORDS or words[: shim.HEAD_SLOTS] != (shim.MAGIC, shim.VERSION):
        return ()
    slots = min(words[shim.HEAD_SLOTS], len(words) // WORDS - 1)
    beats = (_beat(index, words[(1 + index) * WORDS : (2 + index) * WORDS], now) for index in range(slots))
    return tuple(beat for beat in beats if beat is not None)


def _total(total: int, step: int | None) -> int | None:
    """Return the step with which the training ends; None where it continues beyond it: that was the end of an epoch or of another."""
    return total if total > 0 and (step is None or step <= total) else None


def _beat(index: int, slot: tuple[int, ...], now_ns: int) -> RankHeartbeat | None:
    if not slot[shim.PID]:
        return None
    flags = slot[shim.FLAGS]
    stored, since_ns = shim.split_phase(slot[shim.PHASE])
    step, source = shim.split_step(slot[shim.STEP], slot[shim.STEPS])
    over_ms = shim.over_ms(slot[shim.OVER], slot[shim.STEPS])
    return RankHeartbeat(
        local_rank=index,
        rank=slot[shim.RANK],
        pid=slot[shim.PID],
        start_ticks=slot[shim.START_TICKS],
        hello_ns=slot[shim.HELLO_NS],
        phase=Phase(shim.PHASES[shim.proven_phase(stored, flags, now_ns - slot[shim.HELLO_NS])]),
        phase_since_ns=since_ns,
        steps=slot[shim.STEPS],
        last_step_ns=slot[shim.LAST_STEP_NS] or None,
        step=step,
        step_source={shim.SOURCE_OPTIMIZER: "optimizer", shim.SOURCE_WORKER: "worker"}.get(source),
        torch_loaded=bool(flags & shim.FLAG_AUTOGRAD),
        backward_seen=bool(flags & shim.FLAG_BACKWARD),
        save_asked=bool(flags & shim.FLAG_SAVE_ASKED),
        asks=bool(flags & shim.FLAG_ASKS),
        went_on=bool(flags & shim.FLAG_WENT_ON),
        saved=bool(flags & shim.FLAG_SAVED),
        first_step=slot[shim.BEGAN] - 1 if slot[shim.BEGAN] else None,
        total=_total(slot[shim.TOTAL], step),
        loss=struct.unpack("<d", struct.pack("<q", slot[shim.LOSS]))[0] if slot[shim.LOSS] else None,
        losses=slot[shim.LOSSES],
        left_out=slot[shim.LEFT_OUT],
        optimizer_made=bool(flags & shim.FLAG_OPTIMIZER),
        ran=bool(flags & shim.FLAG_RAN),
        loader=bool(flags & shim.FLAG_LOADER),
        life_ns=slot[shim.LIFE_NS] or None,
        rounds=bool(flags & shim.FLAG_ROUNDS),
        imported=bool(flags & shim.FLAG_IMPORTED),
        unlimited=bool(flags & shim.FLAG_UNLIMITED),
        gpu_memory=GpuMemory(*slot[shim.GPU_MEMORY_NS : shim.PINNED]) if slot[shim.GPU_MEMORY_NS] else None,
        pinned=slot[shim.PINNED] - 1 if slot[shim.PINNED] > 0 else None,
        world=slot[shim.WORLD] if slot[shim.WORLD] > 0 else None,
        over_ns=None if over_ms is None else over_ms * 1_000_000,
        parts=_parts(slot),
        phase_limit_s=slot[shim.PHASE_LIMIT] / 1e3 if slot[shim.PHASE_LIMIT] > 0 else None,
    )


def _parts(slot: tuple[int, ...]) -> PartTimes | None:
    parts_ns = slot[shim.PARTS_NS : shim.PARTS_NS + len(shim.PARTS)]
    if not any(parts_ns):
        return None
    text = struct.pack(f"<{shim.PLACE_BYTES // 8}q", *slot[shim.PLACE : shim.PLACE + shim.PLACE_BYTES // 8])
    is_whole = slot[shim.PLACE_SUM] == shim.place_sum(text)  # else it was being written
    place = text.rstrip(b"\0").decode(errors="replace") if is_whole else ""
    return PartTimes(parts_ns, slot[shim.DISK_NS], slot[shim.LOADER_NS], place)
