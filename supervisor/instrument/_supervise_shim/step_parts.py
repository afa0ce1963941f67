"""Samples where the training thread is, up to 20 times a second, and adds the time up by parts of a step in the heartbeat.

A sample means the time since the one before. Its part is that of the frames: anything below a loader of data is *data*, whatever the
innermost frame is; else the innermost frame that belongs to a part names it. On a CPU the thread sleeps in a backward pass only where
that waits for a collective (gloo's threads do the rest), so a sleeping thread in torch's own code is *communication*. With CUDA this thread
only launches what a step does: a sample shows data, a save, a line that waits for the GPU, or *rest*, never a forward or backward pass.

The pauses are of different lengths, so that steps of one length do not meet the same one. A thread that makes no progress is sampled more
and more seldom. Its state is read from /proc only where its CPU clock has moved: a thread that has not run is in the state that was read
last. So a rank that makes no progress reads nothing, and the hang watch, which counts the bytes that a rank reads, sees none of the shim's.
"""

from __future__ import annotations

import os
import sys
from time import clock_gettime_ns, monotonic_ns, pthread_getcpuclockid

from . import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

    from .heartbeat import HeartbeatWriter

DATA, COMPUTE, COMMUNICATION, OPTIMIZER, CHECKPOINT, GPU, REST = range(7)
#: Kinds of files that belong to no part: the user's or another library's, torch's own, where the standard library waits, and the shim's.
USER, TORCH, WAITING, OWN = range(10, 14)
#: A part of a file's path, and its part of the step; the first that fits counts. <torch>, <python>: their own directories.
FILES = (
    (("/_supervise_shim/",), OWN),
    (("<torch>/utils/data/", "/torchdata/", "/accelerate/data_loader.py", "/webdataset/", "/streaming/base/", "/nvidia/dali/"), DATA),
    (("<torch>/serialization.py", "<torch>/distributed/checkpoint/", "/safetensors/torch.py"), CHECKPOINT),
    (("<torch>/distributed/distributed_c10d.py", "<torch>/distributed/_functional_collectives.py"), COMMUNICATION),
    (("<torch>/optim/",), OPTIMIZER),
    (("<torch>/nn/modules/", "<torch>/nn/functional.py", "<torch>/nn/parallel/", "<torch>/autograd/"), COMPUTE),
    (("<torch>/distributed/fsdp/", "<torch>/distributed/_composable/"), COMPUTE),
    (("<torch>/_functorch/", "<torch>/_dynamo/", "<torch>/_inductor/", "/torchinductor_"), COMPUTE),
    (("<torch>/",), TORCH),
    (("<python>/multiprocessing/", "<python>/threading.py", "<python>/selectors.py", "<python>/queue.py"), WAITING),
)
#: Functions of scripts that have no loader of a library's (nanoGPT and what came of it).
LOADS = frozenset({"get_batch", "next_batch", "load_batch"})
#: Functions that make the host wait for the GPU, by which a line of the user's is recognised; and one that waits for a collective.
SYNCHRONIZES = frozenset(
    {"item", "tolist", "cpu", "cuda", "to", "numpy", "nonzero", "synchronize", "float", "int", "bool", "barrier", "isfinite", "isnan"}
)
WAIT = "wait"
#: On average; the pauses are between two thirds and four thirds of it.
PAUSE_S = 0.075
#: A thread that stood still in so many samples is sampled half as often, and so on, down to once in STILL_S.
STILL_SAMPLES, STILL_S = 40, 2.0
#: A sample means no more than so long: before it, the thread that samples did not run.
LONGEST_NS = 2 * int(STILL_S * 1e9)
#: Lines that wait for the GPU are counted for this long at least; then half of the counts go, so that the newest counts.
FADE_NS = 60 * 10**9


class StepParts:
    """The samples of one process."""

    def __init__(self, beat: HeartbeatWriter) -> None:
        self._beat = beat
        self._thread = beat.main_thread
        self._cpu_clock = pthread_getcpuclockid(beat.main_thread)
        self._ran_ns, self._state = -1, ""  # of the main thread: its CPU time when its state was read
        self._last_ns = self._due_ns = self._fade_ns = 0
        self._count = self._still = 0
        self._where: tuple[Any, ...] = ()
        self._places: dict[str, int] = {}

    def sample(self, now: int) -> float:
        """Take a sample if one is due, and return the seconds until the next."""
        if now < self._due_ns:
            return (self._due_ns - now) / 1e9
        beat = self._beat
        if not beat.trains or beat.is_over:
            self._last_ns = 0
            return self._pause(now, 1.0)
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - there is no other way
        if frame is not None:
            self._count += 1
            if self._last_ns:
                self._add(frame, min(now - self._last_ns, LONGEST_NS))
            where = (id(frame.f_code), frame.f_lasti, beat.steps)
            self._still = self._still + 1 if where == self._where else 0
            self._where = where
        self._last_ns = now
        golden = self._count * 0.6180339887 % 1.0
        return self._pause(now, min(PAUSE_S * (2 + 2 * golden) / 3 * 2 ** (self._still // STILL_SAMPLES), STILL_S))

    def _pause(self, now: int, pause_s: float) -> float:
        self._due_ns = now + int(pause_s * 1e9)
        return pause_s

    def _add(self, frame: FrameType, took_ns: int) -> None:
        view, is_cuda = self._beat.slot, uses_cuda()
        part, innermost, user = part_of(frame)
        if self._beat.phase_number == layout.CHECKPOINT:
            part = CHECKPOINT
        elif self._beat.phase_number == layout.DATA:
            part = DATA
        is_beside = part in (DATA, CHECKPOINT)
        state = self._thread_state() if is_beside else ""
        if is_cuda and not is_beside:
            part = REST
            line = user or frame
            if _waits_for_gpu(frame, innermost, user):
                part = GPU
                self._count_place(f"{os.path.basename(line.f_code.co_filename)}:{line.f_lineno}", took_ns)  # noqa: PTH119 - see above
        elif not is_beside and _waits_for_peers(frame, innermost) and self._thread_state() == "S":
            part = COMMUNICATION
        view[layout.PARTS_NS + part] += took_ns
        if state == "D":
            view[layout.DISK_NS] += took_ns
        if part == DATA and state == "S" and innermost == WAITING:
            view[layout.LOADER_NS] += took_ns

    def _thread_state(self) -> str:
        """Return the state of the main thread; it is read only where the thread has run since it was read last."""
        ran_ns = clock_gettime_ns(self._cpu_clock)
        if ran_ns != self._ran_ns:
            self._ran_ns, self._state = ran_ns, thread_state()
        return self._state

    def _count_place(self, place: str, took_ns: int) -> None:
        """Count a line that waits for the GPU, and show the one that waited longest."""
        places, now = self._places, monotonic_ns()
        if now >= self._fade_ns:
            self._fade_ns = now + FADE_NS
            self._places = places = {name: ns // 2 for name, ns in places.items() if ns > 10**6}
        places[place] = places.get(place, 0) + took_ns
        write_place(self._beat.slot, max(places, key=lambda name: places[name]))


def thread_state() -> str:
    """Return the state of the main thread, as the kernel shows it: "S" asleep, "D" on a disk; "" where it cannot be read.

    Nothing after it is read: `4194304 (fifteen letters) S ` is 28 bytes at most.
    """
    pid = os.getpid()
    try:
        fd = os.open(f"/proc/{pid}/task/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 32).rpartition(b")")[2][1:2].decode("ascii")
        finally:
            os.close(fd)
    except OSError:
        return ""


_KINDS: dict[str, int] = {}
_NAMES: dict[tuple[str, int, int], frozenset[str]] = {}


def kind_of(file: str) -> int:
    """Return the part of a step that a file of Python belongs to, or USER, TORCH, WAITING, OWN."""
    kind = _KINDS.get(file)
    if kind is None:
        roots = (("<torch>", getattr(sys.modules.get("torch"), "__file__", None)), ("<python>", os.__file__))
        path = file
        for name, module in roots:
            root = os.path.dirname(module or "") + os.sep  # noqa: PTH120 - see above
            if len(root) > 1 and file.startswith(root):
                path = name + file[len(root) - 1 :]
                break
        kind = _KINDS[file] = next((kind for words, kind in FILES if any(word in path for word in words)), USER)
    return kind


def part_of(frame: FrameType) -> tuple[int, int, FrameType | None]:
    """Return the part of a stack, the kind of its innermost frame outside the shim, and the innermost frame of the user's."""
    part, innermost, user = -1, -1, None
    at: FrameType | None = frame
    while at is not None:
        kind = kind_of(at.f_code.co_filename)
        if kind == USER:
            if at.f_code.co_name in LOADS:
                kind = DATA
            elif user is None:
                user = at
        if innermost < 0 and kind != OWN:
            innermost = kind
        if kind == DATA:
            return DATA, innermost, user
        if part < 0 and kind < USER:
            part = kind
        at = at.f_back
    return (REST if part < 0 else part), innermost, user


def uses_cuda() -> bool:
    """Return whether torch has initialised CUDA in this process."""
    return bool(getattr(sys.modules.get("torch.cuda"), "_initialized", False))


def _waits_for_peers(frame: FrameType, innermost: int) -> bool:
    """Return whether a thread that sleeps here waits for a collective: in torch's own code, or in `wait()`; of one process none does."""
    group = sys.modules.get("torch.distributed.distributed_c10d")
    if group is None or getattr(group.GroupMember, "WORLD", None) is None:
        return False
    return innermost in (COMPUTE, COMMUNICATION, OPTIMIZER, TORCH) or (
        innermost == USER and WAIT in names_of_line(frame.f_code, frame.f_lineno)
    )


def _waits_for_gpu(frame: FrameType, innermost: int, user: FrameType | None) -> bool:
    """Return whether the innermost line calls what waits for the GPU: its own names show it, or a function of torch's on top of it."""
    at: FrameType | None = frame
    while at is not None:
        if at.f_code.co_name in SYNCHRONIZES and kind_of(at.f_code.co_filename) not in (USER, OWN):
            return True
        if at is user:
            break
        at = at.f_back
    return innermost == USER and (_branches(frame) or bool(SYNCHRONIZES & names_of_line(frame.f_code, frame.f_lineno)))


def _branches(frame: FrameType) -> bool:
    """Return whether a frame asks a value whether it is true: that of a tensor on the GPU has to come first."""
    import dis  # noqa: PLC0415 - torch has it by now

    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(("POP_JUMP", "TO_BOOL", "UNARY_NOT", "JUMP_IF"))


def names_of_line(code: CodeType, line: int) -> frozenset[str]:
    """Return the names that the code of a line uses. The code is asked, not its file: that may be on a disk that does not answer."""
    key = (code.co_filename, code.co_firstlineno, line)
    names = _NAMES.get(key)
    if names is None:
        import dis  # noqa: PLC0415 - torch has it by now

        at, names_in_line = 0, set()
        for instruction in dis.get_instructions(code):
            at = _line_of(instruction) or at
            if at == line and isinstance(instruction.argval, str):
                names_in_line.add(instruction.argval)
        names = _NAMES[key] = frozenset(names_in_line)
    return names


def _line_of(instruction: Any) -> int | None:  # noqa: ANN401 - its fields differ by version
    """Return the line that begins at an instruction; Python 3.13 has it under another name."""
    line = getattr(instruction, "line_number", None)
    if line is not None:
        return int(line)
    starts = instruction.starts_line
    return starts if type(starts) is int else None


def write_place(view: memoryview, text: str) -> None:
    """Write a line's name into the heartbeat, if another is there. A long name keeps its end."""
    data = text.encode("utf-8", "replace")[-layout.PLACE_BYTES :].ljust(layout.PLACE_BYTES, b"\0")
    check = layout.place_sum(data)
    if view[layout.PLACE_SUM] != check:
        for index in range(layout.PLACE_BYTES // 8):
            view[layout.PLACE + index] = int.from_bytes(data[8 * index : 8 * index + 8], "little", signed=True)
        view[layout.PLACE_SUM] = check
