"""The common layout of the ranks and the supervisor: the heartbeat file's fields, the files' names, how a process is named.

Imported by both sides, under two names; standard library only and nothing happens on import.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

# The heartbeat file: a header, then one slot per local rank, both of SLOT_BYTES; every field is an 8-byte signed integer at its index,
# written by one aligned store. Values that belong together are one field, so a reader needs no lock and no second look, and a
# rank that was stopped or died between two stores left no half of a field. A slot is in use while PID is not 0.
MAGIC = int.from_bytes(b"SUPVBEAT", "little")
VERSION = 1
SLOT_BYTES = 384
HEAD_MAGIC, HEAD_VERSION, HEAD_SLOTS = range(3)
(PID, START_TICKS, RANK, HELLO_NS, PHASE, STEPS, LAST_STEP_NS, STEP, FLAGS, ASKED, BEGAN, TOTAL, PHASE_LIMIT, LOSS, LOSSES, WORLD) = range(
    16
)
OVER, LEFT_OUT, LIFE_NS = 16, 17, 18
GPU_MEMORY_NS, GPU_ALLOCATED, GPU_RESERVED, GPU_PEAK, GPU_SPLIT, GPU_LIMIT, PINNED = range(19, 26)
# 27 to 41, where a step goes (step_parts.py): nanoseconds of the training in each of PARTS; those of them on a disk, and those in which
# it waited for the workers of a DataLoader. PLACE: up to PLACE_BYTES of the line that waits for the GPU most, and its checksum, by which
# a text is known that was read half.
PARTS = ("data", "compute", "communication", "optimizer", "checkpoint", "gpu", "rest")
PARTS_NS, DISK_NS, LOADER_NS, PLACE_SUM, PLACE = 27, 34, 35, 36, 37
PLACE_BYTES = 40

PHASES = ("unknown", "import", "init", "load", "train", "checkpoint", "eval", "data")
UNKNOWN, IMPORT, INIT, LOAD, TRAIN, CHECKPOINT, EVAL, DATA = range(8)
DECLARABLE = PHASES[INIT:]  # by worker.phase
BEFORE_TRAINING = (IMPORT, INIT, LOAD)
MOST_LIMIT_S = 1e9

SOURCE_NONE, SOURCE_OPTIMIZER, SOURCE_WORKER = range(3)

# PHASE = since when (CLOCK_MONOTONIC ns) << 3 | phase. STEP = value << 2 | source, where the value is the absolute step (worker), or
# how far the absolute step is ahead of STEPS (optimizer: its own count is read now and then, the hook counts in between).
# BEGAN = value + 1, 0 where unknown: the absolute step at which this process began to train, the greater of what the optimizer's count and
# the script's first word show. TOTAL: the absolute step with which the training ends, 0 where it is unknown. PHASE_LIMIT: the milliseconds
# that the script allows without a sign of life in the phase that it declared, 0 where it declared none. LOSS: the bits of the float that
# the script reported last (worker.report), where the loss 0.0 is -0.0, so that 0 is: none. LOSSES: how many it reported. OVER = since
# when (CLOCK_MONOTONIC ms) << 24 | steps (their last 24 bits): the script was over without an exception, or had given up its process group;
# 0: neither. A later step shows that it continued. LEFT_OUT: how many batches all ranks left out (worker.agree). LIFE_NS: when the last
# backward pass, or the last collective of the training thread, began. GPU_MEMORY_NS: when torch's allocator was read last (memory.py), 0:
# never; then the five bytes of its GPU that follow mean nothing. PINNED: bytes of pinned host memory + 1, 0 where torch does not tell.
PHASE_BITS = 3
SOURCE_BITS = 2
OVER_BITS = 24

FLAG_AUTOGRAD = 1  # torch.autograd is watched: from here on "no backward seen" means something
FLAG_BACKWARD = 4  # a backward pass ran
FLAG_ELSEWHERE = 8  # training may continue where we do not see it: another framework, or processes started by torch.multiprocessing
FLAG_SAVE_ASKED = 16  # worker.should_save() or save_requested() returned True
FLAG_ASKS = 32  # the script asks whether to save
FLAG_WENT_ON = 64  # after that it continued (or ended in order) with no save under way
FLAG_SAVED = 128  # and by then a save had ended
FLAG_OPTIMIZER = 256  # an optimizer was made: from here on "no step counted" means that none was made
FLAG_RAN = 512  # more than imports ran: a process group, data, an evaluation, a checkpoint saved or loaded
FLAG_LOADER = 1024  # a DataLoader of torch's started worker processes
FLAG_ROUNDS = 2048  # it goes round in a loop in which no step is seen (heartbeat.py)
FLAG_IMPORTED = 4096  # the record of its imports holds all that it needs to train
FLAG_UNLIMITED = 8192  # FSDP gathers parameters as far ahead as it can (limit_all_gathers=False)

STACKS_SIGNAL = 61  # SIGRTMAX - 3 on Linux; a figure, because importing `signal` costs 3 ms of every process's start
VALUES_SIGNAL = 60  # SIGRTMAX - 4: what the main thread's functions hold (values.py)
IMPORT_PROOF_NS = 60 * 10**9  # so long "has not imported torch yet" is taken as "has not trained"; later it may train without torch
ROUNDS_S = 20  # in so many different seconds a collective began, or a backward pass, and no step was seen: that is a loop
RAN_ON_NS = 3 * 10**9  # a script that ends so long after its last import did more than import
UNCLAIMED = "unclaimed"
_SUFFIXES = {"error": "json", "stacks": "txt", "collectives": "fifo"}
GROUP_TIMEOUT = "SUPERVISE_JOB_GROUP_TIMEOUT_S"  # seconds, the least that a process group waits unless the script says how long

# Rank, local rank and world size of a process that mpirun started: Open MPI's names, and those of MPICH and Intel MPI.
MPI_NAMES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
)


def mpi_rank(environ: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Return rank, local rank and world size by mpirun's variables; None without them. They are its children's too."""
    for names in MPI_NAMES:
        numbers = [environ.get(name, "") for name in names]
        if all(number.isascii() and number.isdigit() for number in numbers):
            rank, local_rank, world_size = map(int, numbers)
            return rank, local_rank, world_size
    return None


def file_name(kind: str, local_rank: int | None, pid: int) -> str:
    """Return the name of a process's "error", "stacks" or "collectives" file; `local_rank` None: it has claimed no slot."""
    owner = UNCLAIMED if local_rank is None else str(local_rank)
    return f"{kind}-{owner}-{pid}.{_SUFFIXES[kind]}"


def start_ticks_of(pid: int) -> int | None:
    """Return field 22 of /proc/PID/stat, which with the pid names a process for one boot; None if it is gone or a zombie."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fields = os.read(fd, 4096).rpartition(b")")[2].split()
        finally:
            os.close(fd)
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def split_phase(field: int) -> tuple[int, int]:
    """Return phase and since when out of PHASE."""
    phase = field & ((1 << PHASE_BITS) - 1)
    return (phase if phase < len(PHASES) else UNKNOWN), field >> PHASE_BITS


def place_sum(text: bytes) -> int:
    """Return the checksum of the PLACE_BYTES in PLACE; never 0, which is: none."""
    from zlib import crc32  # noqa: PLC0415 - not at every start

    return crc32(text) | 1 << 32


def over_ms(field: int, steps: int) -> int | None:
    """Return since when nothing is left to train, out of OVER; None where that is not known, or a step followed."""
    mask = (1 << OVER_BITS) - 1
    return field >> OVER_BITS if field and field & mask == steps & mask else None


def split_step(field: int, steps: int) -> tuple[int | None, int]:
    """Return the absolute step and its source from STEP and STEPS."""
    value, source = field >> SOURCE_BITS, field & ((1 << SOURCE_BITS) - 1)
    if source == SOURCE_OPTIMIZER:
        return value + steps, source
    return (value, source) if source == SOURCE_WORKER else (None, SOURCE_NONE)


def loads_first(via: str, steps: int) -> bool:
    """Return whether a load after so many steps came before the training: DCP makes a step of zeros first, to have a state."""
    return steps <= (1 if via == "dcp" else 0)


def proven_phase(phase: int, flags: int, age_ns: int) -> int:
    """Return the phase, or UNKNOWN where "before the first step" is not proven: training may continue where the shim has no hook."""
    if phase not in BEFORE_TRAINING or flags & FLAG_BACKWARD:
        return phase
    blind = flags & (FLAG_ELSEWHERE | FLAG_ROUNDS) or (not flags & FLAG_AUTOGRAD and age_ns > IMPORT_PROOF_NS)
    return UNKNOWN if blind else phase


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep every failure of the shim out of the training: the guarded function returns None instead."""

    def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever it is
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - whatever it is, it is not the user's
            return None

    return guarded


def wrapped_as(inner: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Give a wrapper the name of the wrapped function, as functools.wraps does; functools is not imported for that at every start."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
        if hasattr(inner, name):
            setattr(wrapper, name, getattr(inner, name))
    wrapper.__dict__.update(getattr(inner, "__dict__", {}))
    wrapper.__wrapped__ = inner  # type: ignore[attr-defined]  # as inspect.signature follows it
    return wrapper
