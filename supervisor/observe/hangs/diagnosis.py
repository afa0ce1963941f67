"""What two neighbouring looks at the ranks mean: which of them moved, or what the hang is. Pure.

What moves in a rank that works, though slowly: its steps, its phase, the collective that it is in, the line of its training thread, the
bytes that it reads and writes. CPU time and wake-ups at one and the same place are no movement, because a loop without an end has them
too: the rank is *busy*, and may go on. The counters of a rank that waits in a collective are those of its main thread: torch's other
threads wake up now and then in a rank that hangs.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from supervisor.core.model import Hang, HangKind, Phase
from supervisor.core.numeric import rank_list
from supervisor.core.values import dataclass
from supervisor.observe.hangs.standing import Doing, Standing, compiles, doing, standing, training_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.observe.hangs.frames import ThreadStack
    from supervisor.observe.hangs.look import Look, ProcessLook, RankLook
    from supervisor.observe.hangs.recorder import RecordedCollectives

#: Share of one CPU from which a thread, and a process with all its threads, is busy. Measured: a gloo rank that hangs uses 0.000 in its
#: main thread and 0.006 in all.
BUSY_THREAD, BUSY_PROCESS = 0.02, 0.1
#: Voluntary context switches of a main thread per second from which it is busy. Measured: 0.0 in a collective, 0.2 in a DataLoader.
BUSY_SWITCHES = 1.0
#: Bytes read or written between two looks that show work. A thread that logs, or reads /proc, stays below.
MOVED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Movement:
    """Which ranks moved between two looks, each with what showed it. busy: what ranks do in one and the same place that takes CPU time."""

    moved: tuple[tuple[int, str], ...] = ()
    busy: tuple[tuple[int, str], ...] = ()

    @property
    def text(self) -> str:
        """What showed it, for people; "" if nothing moved."""
        return "; ".join(f"rank {rank} {what}" for rank, what in self.moved)


def compare(first: Look, second: Look) -> Movement:
    """Return which ranks moved from the end of the first look to the beginning of the second."""
    before = {look.rank: look for look in first.ranks}
    moved, busy = [], []
    for after in second.ranks:
        look = before.get(after.rank)
        what = "was not there before" if look is None else _moved(look, after)
        if what:
            moved.append((after.rank, what))
        elif look is not None and (does := _activity(look, after)):
            busy.append((after.rank, does))
    moved += [(rank, "is not there any more") for rank in sorted(before.keys() - {look.rank for look in second.ranks})]
    return Movement(tuple(moved), tuple(busy))


def hang(first: Look, second: Look, *, still_s: float, limit_s: float, calibrated: bool) -> Hang:
    """Return what the hang is, of two neighbouring looks between which no rank moved."""
    before = {look.rank: standing(look) for look in first.ranks}
    now = tuple(standing(look) for look in second.ranks)
    lasting = tuple(one for one in now if one.rank in before and _same(before[one.rank], one))
    busy = dict(compare(first, second).busy)
    now = tuple(
        replace(one, text=f"{one.text}, and {busy[one.rank]}") if one.doing is Doing.ELSEWHERE and one.rank in busy else one for one in now
    )
    kind, text, culprits = _judged(now, lasting, second)
    concerned = [one.rank for one in culprits or now]
    waiters = [one for one in now if one.group is not None]
    timeouts = [one.group.timeout_s for one in waiters if one.group is not None and one.group.timeout_s is not None]
    shown = culprits[0] if culprits else now[0] if now else None
    return Hang(
        kind,
        text,
        tuple(one.rank for one in culprits),
        _code(culprits),
        Phase.UNKNOWN if shown is None else shown.phase,
        still_s,
        limit_s,
        calibrated,
        kind in {HangKind.LATE, HangKind.WAITING, HangKind.EXIT, HangKind.STILL} and any(rank in busy for rank in concerned),
        min(timeouts, default=None),
    )


def _judged(now: tuple[Standing, ...], lasting: tuple[Standing, ...], look: Look) -> tuple[HangKind, str, tuple[Standing, ...]]:
    """Return kind, sentence and culprits: the first kind that is proven. `lasting`: the ranks that do the same in both looks."""
    waits = tuple(one for one in now if one.doing is Doing.WAITS)
    if missed := _missed(now, lasting, waits):
        return HangKind.GONE, _sentence(waits, missed, look), missed
    if conflict := _mismatch(lasting):
        return HangKind.MISMATCH, f"{_waiting(conflict)}: they wait for ever", conflict
    for kind, which in ((HangKind.STOPPED, Doing.STOPPED), (HangKind.BLOCKED, Doing.BLOCKED)):
        if culprits := tuple(one for one in lasting if one.doing is which):
            return kind, _sentence(waits, culprits, look), culprits
    rest = tuple(one for one in now if one.doing not in {Doing.WAITS, Doing.GONE})
    goes_on = rest if len(rest) < len(now) else ()  # the others ended in order
    if rest and (waits or all(one.at_exit for one in rest)):
        return HangKind.LATE if waits else HangKind.EXIT, _sentence(waits, rest, look), rest
    calls = {(one.group.name if one.group else "", one.text) for one in waits}
    if len(calls) == 1 and not any(one.collective is not None and one.collective.is_p2p for one in waits):
        return HangKind.WAITING, _sentence(waits, (), look), ()
    return HangKind.STILL, _sentence(waits, rest, look) or "no rank of this node is known", goes_on


def _missed(now: tuple[Standing, ...], lasting: tuple[Standing, ...], waits: tuple[Standing, ...]) -> tuple[Standing, ...]:
    """Return the ranks that are gone and that a peer waits for, or all if none lives.

    A rank may also have ended in order, while another one still uploads the result: that is no hang.
    """
    gone = tuple(one for one in lasting if one.doing is Doing.GONE)
    if len(gone) == len(now):
        return gone
    return tuple(one for one in gone if any(wait.group is None or not wait.group.ranks or one.rank in wait.group.ranks for wait in waits))


def _mismatch(lasting: tuple[Standing, ...]) -> tuple[Standing, ...]:
    """Return the ranks that wait in one process group for collectives that differ; none without.

    Two ranks whose collectives of one number are different operations wait for ever, whatever the others do. Different numbers prove it
    only if all ranks of the group are seen, and all wait: a broadcast is over for its source before the others have come.
    """
    groups: dict[tuple[str, str, tuple[int, ...]], list[Standing]] = {}  # two groups that share no rank may share a name
    for one in lasting:
        if (
            one.doing is Doing.WAITS
            and one.group is not None
            and one.group.name
            and one.collective is not None
            and not one.collective.is_p2p
        ):
            groups.setdefault((one.group.name, one.group.backend, one.group.ranks), []).append(one)
    for found in groups.values():
        calls = {(one.collective.sequence, one.collective.operation) for one in found if one.collective is not None}
        differ_in_name = len(calls) > len({sequence for sequence, _ in calls})
        members = {rank for one in found if one.group is not None for rank in one.group.ranks}
        all_wait = bool(members) and members == {one.rank for one in found}
        if differ_in_name or (len(calls) > 1 and all_wait):
            return tuple(found)
    return ()


def _sentence(waits: tuple[Standing, ...], others: tuple[Standing, ...], look: Look) -> str:
    """Return one sentence: who waits in what, and what the others do."""
    parts = [_waiting(waits)] if waits else []
    alike: dict[str, list[Standing]] = {}
    for one in others:
        alike.setdefault(one.text, []).append(one)
    parts += [f"{rank_list(one.rank for one in ones)} {'is' if len(ones) == 1 else 'are'} {text}" for text, ones in alike.items()]
    behind = _behind(look)
    return "; ".join([*parts, *([behind] if behind else [])])


def _waiting(waits: Sequence[Standing]) -> str:
    """Return who waits in which collective, and where in the user's code: `ranks 0-6 wait in all_reduce (seq 1841, train.py:61)`."""
    alike: dict[str, list[Standing]] = {}
    for one in waits:
        place = one.place if all(other.place == one.place for other in waits if other.text == one.text) else ""
        inner = f", {place})" if place else ")"
        text = one.text[:-1] + inner if one.text.endswith(")") else one.text + (f" ({place})" if place else "")
        alike.setdefault(text, []).append(one)
    parts: list[str] = []
    for text, ones in alike.items():
        verb = "" if parts else " waits" if len(ones) == 1 else " wait"
        parts.append(f"{rank_list(one.rank for one in ones)}{verb} {text}")
    return ", ".join(parts)


def _code(culprits: Sequence[Standing]) -> str:
    """Return where the culprits stand in the user's code: `train.py:61`, `train.py:61 (rank 0), train.py:75 (ranks 1-3)`."""
    places: dict[str, list[int]] = {}
    for one in culprits:
        if one.place:
            places.setdefault(one.place, []).append(one.rank)
    if len(places) == 1:
        return next(iter(places))
    return ", ".join(f"{place} ({rank_list(ranks)})" for place, ranks in places.items())


def _behind(look: Look) -> str:
    """Return which ranks made fewer steps than the others; "" where all made as many. One that ended lags behind nobody."""
    steps = {one.rank: one.steps for one in look.ranks if one.steps and not one.process.is_gone}
    most = max(steps.values(), default=0)
    by_lag: dict[int, list[int]] = {}
    for rank, made in steps.items():
        by_lag.setdefault(most - made, []).append(rank)
    return ", ".join(
        f"{rank_list(ranks)} {'is' if len(ranks) == 1 else 'are'} {'one step' if lag == 1 else f'{lag} steps'} behind"
        for lag, ranks in sorted(by_lag.items())
        if lag
    )


def _same(before: Standing, after: Standing) -> bool:
    """Return whether a rank does the same in both looks."""
    return (before.doing, before.pid, before.text) == (after.doing, after.pid, after.text)


def _moved(before: RankLook, after: RankLook) -> str:
    """Return what showed that a rank moved, behind its name; "" if nothing did."""
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
        was = old.get((group.name, group.backend))
        newest = group.last[-1] if group.last else None
        if newest is not None and (was is None or not was.last or was.last[-1] != newest):
            return (
                f"came to {newest.text}"
                if was is None or not was.last or was.last[-1].sequence != newest.sequence
                else "ended a collective"
            )
    return ""


def _moved_process(old: ProcessLook, new: ProcessLook, busy: bool) -> str:  # noqa: FBT001 - a plain fact of both
    was, now = training_thread(old.stacks), training_thread(new.stacks)
    if was is not None and now is not None:
        if busy and compiles(was) and compiles(now):
            return "compiles"
        if _signature(was, busy) != _signature(now, busy):
            return f"was {_at(was)} and is {_at(now)}" if _at(was) != _at(now) else f"computes a model {_at(now)}"
    for name, count in (("read", _bytes(old, new, "read_bytes")), ("wrote", _bytes(old, new, "written_bytes"))):
        if count >= MOVED_BYTES:
            return f"{name} {count >> 20} MiB"
    return ""


def _moved_workers(before: RankLook, after: RankLook) -> str:
    old = {worker.pid: worker for worker in before.workers}
    new = {worker.pid: worker for worker in after.workers}
    if old.keys() != new.keys():
        return "started or ended a process"
    for pid, worker in new.items():
        if max(_bytes(old[pid], worker, "read_bytes"), _bytes(old[pid], worker, "written_bytes")) >= MOVED_BYTES:
            return f"has a worker ({pid}) that reads or writes"
    return ""


def _signature(thread: ThreadStack, busy: bool) -> object:  # noqa: FBT001 - as above
    """Return what is the same in two looks at a thread that stands still: the user's frames with their lines, and torch's functions.

    Of one that is busy it is the innermost function of the user's: a loop without an end is in different lines of it. Where that computes a
    model of torch's, it is also the place in it: an evaluation is in another layer at nearly each look.
    """
    frame = thread.user_frame
    if busy:
        below = list(itertools.takewhile(lambda one: one.is_library, thread.frames))
        computes = any(one.module.startswith("torch/nn/") for one in below)
        return None if frame is None else (frame.file, frame.function, [(one.file, one.line) for one in below if computes])
    return [(one.file, one.function, 0 if one.is_library else one.line) for one in thread.frames if not one.is_standard]


def _at(thread: ThreadStack) -> str:
    frame = thread.user_frame or thread.innermost
    return "in no Python code" if frame is None else f"in {frame.function} ({frame.place})"


def _activity(before: RankLook, after: RankLook) -> str:
    """Return what a rank, or a worker of its, did between two looks that takes CPU time, behind its name; "" for nothing."""
    thread = training_thread(after.process.stacks)
    if thread is not None and doing(thread)[1] is Phase.INIT:
        return ""  # it asks torch's store again and again whether the others have come
    # a rank that waits in a collective, with a recorder to prove it: only its own thread counts, unless gradients are still computed
    waits = standing(after)
    by_thread = waits.doing is Doing.WAITS and waits.collective is not None and (thread is None or thread.find("torch/autograd/") is None)
    if does := _process_activity(before.process, after.process, 1e9 if by_thread else BUSY_PROCESS):
        return does
    old = {worker.pid: worker for worker in before.workers}
    workers = () if by_thread else (_process_activity(old[one.pid], one, BUSY_THREAD) for one in after.workers if one.pid in old)
    return next(filter(None, workers), "")


def _process_activity(old: ProcessLook, new: ProcessLook, most_process: float) -> str:
    was, now = old.after, new.before
    if was is None or now is None or now.t <= was.t or now.cpu_s < was.cpu_s:
        return ""
    seconds = now.t - was.t
    if (now.main_cpu_s - was.main_cpu_s) / seconds >= BUSY_THREAD or (now.cpu_s - was.cpu_s) / seconds >= most_process:
        return "uses CPU time"
    if old.state == new.state == "R":
        return "waits for a processor"  # what waits for anything else is in another state
    return "wakes up again and again" if (now.main_switches - was.main_switches) / seconds >= BUSY_SWITCHES else ""


def _bytes(old: ProcessLook, new: ProcessLook, name: str) -> int:
    was, now = old.after, new.before
    return 0 if was is None or now is None or getattr(was, name) < 0 else int(getattr(now, name) - getattr(was, name))
