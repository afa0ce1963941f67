"""Compares two neighbouring looks at the ranks: the ranks that moved, and the work of each in one and the same place. Pure.

Signs of a rank that works, though slowly: its steps, its phase, the collective that it is in, the line of its training thread, the
bytes that it reads and writes, or that a process does that it waits for. CPU time at the same place is not a movement, because a loop
without an end has it too: the rank is *busy*, and may continue. Wake-ups are not work: a loop that sleeps and asks again *polls* and waits.
Few bytes are *slow*: it continues, and nobody can say when it ends. The counters of a rank that waits in a collective are those of its main
thread: torch's other threads wake up now and then in a rank that hangs.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from supervisor.core.model import Phase
from supervisor.core.units import bytes_text, rate_text
from supervisor.core.values import Struct
from supervisor.observe.hangs.awaited import AwaitedKind
from supervisor.observe.hangs.rank_activity import ActivityKind, compiles, rank_activity, shown_activity, training_thread, waits_for_thread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.observe.hangs.frames import ThreadStack
    from supervisor.observe.hangs.look import Look, ProcessLook, RankLook
    from supervisor.observe.hangs.recorder import RecordedCollectives

#: Share of one CPU from which a thread, and a process with all its threads, is busy. Measured: a gloo rank that hangs uses 0.000 in its
#: main thread and 0.006 in all.
BUSY_THREAD, BUSY_PROCESS = 0.02, 0.1
#: A thread that uses less CPU time than this for each of its wake-ups polls, whatever share that is. Measured: 0.02 to 0.08 ms for a loop
#: that asks for a file, lists a directory or reads a small one every 0.1 to 10 ms; one that computes in between uses 0.3 ms and more.
POLL_CPU_S = 0.00015
#: Wake-ups a second from which a thread polls: one in ten seconds.
LEAST_POLLS = 0.1
#: Bytes read or written between two looks that show work. A thread that logs, or reads /proc, stays below.
MOVED_BYTES = 1 << 20
#: Bytes a second of the thread that trains, or of the process that it waits for, that show that it continues. A small file that is read
#: again every 0.1 s is less.
SLOW_BYTES = 1024
#: How a path shows that it is of a checkpoint, whole or half-written.
_OF_CHECKPOINT = re.compile(r"\.(pt|pth|ckpt|bin|safetensors|distcp|npz)\b[^/]*$|(ckpt|checkpoint|global_step|iter_\d)", re.IGNORECASE)
#: Where the standard library waits for another process.
_PROCESS_MODULES = ("subprocess.py", "multiprocessing/", "concurrent/futures/process.py")


class RankProgress(Struct, frozen=True):
    """The ranks that moved between two looks, each with its sign. busy: work of ranks in one and the same place that takes CPU time.

    slow: those whose few bytes move; polling: those that only ask again and again. working: of which any thread, or any process below,
    moved bytes or used CPU time, or has a checkpoint open for writing: what a rank whose training is over may still do.
    """

    moved: tuple[tuple[int, str], ...] = ()
    busy: tuple[tuple[int, str], ...] = ()
    slow: tuple[tuple[int, str], ...] = ()
    polling: tuple[int, ...] = ()
    working: tuple[tuple[int, str], ...] = ()

    @property
    def text(self) -> str:
        """The signs of movement, for people; "" if nothing moved."""
        return "; ".join(f"rank {rank} {activity}" for rank, activity in self.moved)


def compare(first: Look, second: Look) -> RankProgress:
    """Return which ranks moved from the end of the first look to the beginning of the second."""
    before = {look.rank: look for look in first.ranks}
    moved, busy, slow, polling, working = [], [], [], [], []
    for after in second.ranks:
        look = before.get(after.rank)
        activity = "was not there before" if look is None else _moved(look, after)
        if activity:
            moved.append((after.rank, activity))
        elif look is not None:
            busy += [(after.rank, does)] if (does := _activity(look, after)) else []
            slow += [(after.rank, does)] if (does := _trickle(look, after)) else []
            polling += [after.rank] if _polls(look.process, after.process) else []
            working += [(after.rank, does)] if (does := _work(look, after)) else []
    moved += [(rank, "is not there any more") for rank in sorted(before.keys() - {look.rank for look in second.ranks})]
    return RankProgress(tuple(moved), tuple(busy), tuple(slow), tuple(polling), tuple(working))


def _moved(before: RankLook, after: RankLook) -> str:
    """Return what showed that a rank moved, after its name; "" if nothing did."""
    old, new = before.process, after.process
    if (old.pid, old.start_ticks) != (new.pid, new.start_ticks):
        return "is another process"
    if old.is_gone != new.is_gone:
        return "ended"
    if (old.state in {"T", "t"}) != (new.state in {"T", "t"}):
        return "was stopped" if new.state in {"T", "t"} else "was continued"
    if (before.steps, before.step) != (after.steps, after.step):
        return f"made steps ({before.steps} before, {after.steps} now)"
    if before.phase != after.phase:
        return f"went from phase {before.phase} to {after.phase}"
    collectives = _went_on(before.collectives, after.collectives)
    return collectives or _moved_process(old, new, bool(_activity(before, after))) or _moved_workers(before, after)


def _went_on(before: RecordedCollectives, after: RecordedCollectives) -> str:
    """Return the collective that a rank has come to since; "" without, and where a recorder was not read."""
    if before.unreadable:
        return ""
    old = {(group.name, group.backend): group for group in before.groups}
    for group in after.groups:
        process_group = old.get((group.name, group.backend))
        newest = group.last[-1] if group.last else None
        if newest is not None and (process_group is None or not process_group.last or process_group.last[-1] != newest):
            return (
                f"came to {newest.text}"
                if process_group is None or not process_group.last or process_group.last[-1].sequence != newest.sequence
                else "ended a collective"
            )
    return ""


def _moved_process(old: ProcessLook, new: ProcessLook, busy: bool) -> str:  # noqa: FBT001 - a plain fact of both
    before, now = training_thread(old.stacks), training_thread(new.stacks)
    if before is not None and now is not None:
        if busy and compiles(before) and compiles(now):
            return "compiles"
        if _signature(before, busy) != _signature(now, busy):
            return f"was {_at(before)} and is {_at(now)}" if _at(before) != _at(now) else f"computes a model {_at(now)}"
    for name, count in (("read", _bytes(old, new, "read_bytes")), ("wrote", _bytes(old, new, "written_bytes"))):
        if count >= MOVED_BYTES:
            return f"{name} {bytes_text(count)}"
    if (count := new.socket_bytes - old.socket_bytes) >= MOVED_BYTES:
        return f"moved {bytes_text(count)} over the network"
    return ""


def _moved_workers(before: RankLook, after: RankLook) -> str:
    if _waits_for_process(before.process) and _waits_for_process(after.process):
        if {helper.pid for helper in before.helpers} != {helper.pid for helper in after.helpers}:
            return "waits for a process that started or ended others"
        if _helper_bytes(before, after) >= MOVED_BYTES:
            return "waits for a process that reads or writes"
    old = {worker.pid: worker for worker in before.workers}
    new = {worker.pid: worker for worker in after.workers}
    if old.keys() != new.keys():
        return "started or ended a process"
    for pid, worker in new.items():
        if max(_bytes(old[pid], worker, "read_bytes"), _bytes(old[pid], worker, "written_bytes")) >= MOVED_BYTES:
            return f"has a worker ({pid}) that reads or writes"
    return ""


def _signature(thread: ThreadStack, busy: bool) -> object:  # noqa: FBT001 - as above
    """Return the common frames of two looks at a thread that makes no progress: the user's frames with their lines, and torch's functions.

    Of one that is busy it is the innermost function of the user's: a loop without an end is in different lines of it. Where that computes a
    model of torch's, it is also the place in it: an evaluation is in another layer at nearly each look.
    """
    frame = thread.user_frame
    if busy:
        below = list(itertools.takewhile(lambda inner: inner.is_library, thread.frames))
        computes = any(inner.module.startswith("torch/nn/") for inner in below)
        return None if frame is None else (frame.file, frame.function, [(inner.file, inner.line) for inner in below if computes])
    return [(frame.file, frame.function, 0 if frame.is_library else frame.line) for frame in thread.frames if not frame.is_standard]


def _at(thread: ThreadStack) -> str:
    frame = thread.user_frame or thread.innermost
    return "in no Python code" if frame is None else f"in {frame.function} ({frame.place})"


def _activity(before: RankLook, after: RankLook) -> str:
    """Return what a rank, or a process below it, did between two looks that takes CPU time, after its name; "" for nothing."""
    thread = training_thread(after.process.stacks)
    if thread is not None and shown_activity(thread)[1] is Phase.INIT:
        return ""  # it asks torch's store again and again whether the others have come
    # a rank that waits in a collective, with a recorder to prove it: only its own thread counts, unless gradients are still computed
    waits = rank_activity(after)
    by_thread = (
        waits.kind is ActivityKind.WAITS and waits.collective is not None and (thread is None or thread.find("torch/autograd/") is None)
    )
    if does := _process_activity(before.process, after.process, 1e9 if by_thread else BUSY_PROCESS):
        return does
    if by_thread:
        return ""
    old = {worker.pid: worker for worker in before.workers}
    if does := next(
        filter(None, (_process_activity(old[worker.pid], worker, BUSY_THREAD) for worker in after.workers if worker.pid in old)), ""
    ):
        return does
    seconds = _seconds(before.process, after.process)
    share = (_helper_cpu_s(after, first=False) - _helper_cpu_s(before, first=True)) / seconds if seconds else 0.0
    is_busy = share >= (BUSY_THREAD if _waits_for_process(after.process) else BUSY_PROCESS)
    return "has processes that use CPU time" if is_busy else ""


def _process_activity(old: ProcessLook, new: ProcessLook, most_process: float) -> str:
    before, now, seconds = old.after, new.before, _seconds(old, new)
    if before is None or now is None or not seconds or now.cpu_s < before.cpu_s:
        return ""
    main_s = now.main_cpu_s - before.main_cpu_s
    others_s = now.cpu_s - before.cpu_s - (main_s if _polls(old, new) else 0.0)
    if (main_s / seconds >= BUSY_THREAD and not _polls(old, new)) or others_s / seconds >= most_process:
        return "uses CPU time"
    if old.state == new.state == "R":
        return "waits for a processor"  # what waits for anything else is in another state
    return ""


def _polls(old: ProcessLook, new: ProcessLook) -> bool:
    """Return whether the main thread woke up again and again, and did next to nothing each time."""
    before, now, seconds = old.after, new.before, _seconds(old, new)
    if before is None or now is None or not seconds:
        return False
    main_s, wakes = now.main_cpu_s - before.main_cpu_s, now.main_switches - before.main_switches
    return wakes / seconds >= LEAST_POLLS and (main_s / seconds < BUSY_THREAD or main_s / wakes < POLL_CPU_S)


def _trickle(before: RankLook, after: RankLook) -> str:
    """Return which few bytes a rank moves, after its name: those of its training thread, and of what that waits for. "": next to none."""
    old, new = before.process, after.process
    past, now, seconds = old.after, new.before, _seconds(old, new)
    if past is None or now is None or not seconds:
        return ""
    then = {awaited.name: awaited.moved_bytes for awaited in old.awaits if awaited.kind is AwaitedKind.SOCKET}
    peers = ((awaited.name, awaited.moved_bytes - then[awaited.name]) for awaited in new.awaits if awaited.name in then)
    name, moved = max(peers, key=lambda pair: pair[1], default=("", 0))
    if past.main_bytes >= 0 and (count := now.main_bytes - past.main_bytes) > moved:
        name, moved = "", count
    if waits_for_thread(new.stacks):
        moved = max(moved, new.socket_bytes - old.socket_bytes, _bytes(old, new, "read_bytes") + _bytes(old, new, "written_bytes"))
    if _waits_for_process(new):
        moved = max(moved, _helper_bytes(before, after))
    if moved / seconds < SLOW_BYTES:
        return ""
    places = dict(old.files)
    grown = max(new.files, key=lambda file: file[1] - places.get(file[0], file[1]), default=("", 0))
    pipe = next((awaited.name for awaited in new.awaits if awaited.kind is AwaitedKind.PIPE and awaited.name.startswith("/")), "")
    name = grown[0] if grown[0] and grown[1] > places.get(grown[0], grown[1]) else name or pipe
    return f"moving {rate_text(moved / seconds)}" + (f" of {name}" if name else "")


def _work(before: RankLook, after: RankLook) -> str:
    """Return what a rank or a process below it still does, after its name, whichever thread does it; "" for nothing."""
    old = {look.pid: look for look in (before.process, *before.workers, *before.helpers)}
    for look in (after.process, *after.workers, *after.helpers):
        past = old.get(look.pid)
        if past is None:
            return "started a process"
        if path := next((path for path in look.writing if _OF_CHECKPOINT.search(path)), ""):
            return f"has {path} open for writing"
        moved = sum(max(0, _bytes(past, look, name)) for name in ("read_bytes", "written_bytes")) + look.socket_bytes - past.socket_bytes
        seconds = _seconds(past, look)
        if seconds and moved / seconds >= SLOW_BYTES:
            return f"moves {rate_text(moved / seconds)}"
        if _process_activity(past, look, BUSY_PROCESS):
            return "uses CPU time"
    return _activity(before, after)


def _waits_for_process(process: ProcessLook) -> bool:
    """Return whether a process waits for another one, or for what that writes into a pipe."""
    if any(awaited.kind is AwaitedKind.PROCESS or (awaited.kind is AwaitedKind.PIPE and awaited.lives) for awaited in process.awaits):
        return True
    inner = process.stacks[0].frames if process.stacks else ()
    return any(frame.module.startswith(_PROCESS_MODULES) for frame in itertools.takewhile(lambda frame: frame.is_standard, inner))


def _helper_cpu_s(look: RankLook, *, first: bool) -> float:
    """Return the CPU time of the processes below a rank, ended ones too: at the end of the first look, or the beginning of the second."""
    own = look.process.after if first else look.process.before
    rows = [counters for helper in look.helpers if (counters := helper.after if first else helper.before) is not None]
    return (0.0 if own is None else own.children_cpu_s) + sum(row.cpu_s + row.children_cpu_s for row in rows)


def _helper_bytes(before: RankLook, after: RankLook) -> int:
    """Return the bytes that the processes below a rank moved; those of one that ended are counted as its parent's."""
    old = {helper.pid: helper for helper in before.helpers}
    rows: Iterable[tuple[ProcessLook, ProcessLook]] = [(old[helper.pid], helper) for helper in after.helpers if helper.pid in old]
    return sum(max(0, _bytes(past, now, "read_bytes") + _bytes(past, now, "written_bytes")) for past, now in rows)


def _seconds(old: ProcessLook, new: ProcessLook) -> float:
    """Return the time between two looks at a process; 0 where it could not be read in both."""
    return max(0.0, new.before.t - old.after.t) if old.after is not None and new.before is not None else 0.0


def _bytes(old: ProcessLook, new: ProcessLook, name: str) -> int:
    before, now = old.after, new.before
    return 0 if before is None or now is None or getattr(before, name) < 0 else int(getattr(now, name) - getattr(before, name))
