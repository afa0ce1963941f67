"""Lays a look at the ranks out for a person: a line for each rank, its collectives, and each stack once, with the ranks that have it.

For a terminal, sentences are folded. In a file each is one line, as is a path everywhere, so that it can be copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.numeric import rank_list
from supervisor.core.values import Struct
from supervisor.observe.hangs.rank_activity import ActivityKind, rank_activity
from supervisor.report.layout import folded
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from supervisor.core.model import Hang
    from supervisor.observe.hangs.all_nodes import AllLooks
    from supervisor.observe.hangs.frames import StackFrame, ThreadStack
    from supervisor.observe.hangs.look import Look, ProcessLook, RankLook
    from supervisor.observe.hangs.recorder import ProcessGroup
    from supervisor.report.layout import Surface

#: The frames of a fork below this loop are those of its rank.
_WORKER_LOOP = "torch/utils/data/_utils/worker.py"


class Sentence(Struct, frozen=True):
    """Lines that may be folded; a line that may not is a str."""

    text: str
    indent: str = ""


def text_of(look: Look, hang: Hang | None = None, surface: Surface | None = None) -> str:
    """Return the page, with a line feed at its end. hang: what two looks showed, of which this is the second. surface: None for a file."""
    lines: list[Sentence | str] = [] if hang is None else _head(hang)
    lines.append(f"-- {'rank' if len(look.ranks) == 1 else 'ranks'} of this node, a look of {look.took_s:.1f} s")
    for rank in look.ranks:
        lines += _rank(rank)
    for label, frames in _stacks(look):
        lines += ["", f"-- stack of {label}, the innermost call first", *(_frame(frame) for frame in frames)]
    return _text(lines, surface)


def text_of_all(look: AllLooks, hang: Hang) -> str:
    """Return the page of a look at all nodes, for a file: what the ranks of each do, and each stack once. Each node's own page has more."""
    lines = _head(hang)
    for node, ranks_look in look.nodes:
        lines.append(f"-- ranks of node {clean(node)}")
        for rank in ranks_look.ranks:
            activity = rank.activity
            does = "waits" if activity.kind is ActivityKind.WAITS else "is"
            place = f" ({activity.place})" if activity.place and activity.place not in activity.text else ""
            more = "".join(f", {text}" for text in (rank.busy, rank.slow) if text)
            steps = "" if rank.steps is None else f", {rank.steps} steps made"
            lines.append(Sentence(f"rank {activity.rank} {does} {activity.text}{place}{more}{steps}, phase {activity.phase}"))
            lines += [f"    waits for {clean(awaited.text)}" for awaited in activity.awaits]
            lines += [f"    {clean(text)}" for text in (rank.recorded, rank.device) if text]
        lines += [f"{ranks_look.left_out} more ranks, for which there was no room"] if ranks_look.left_out else []
    for node, reason in look.silent:
        lines.append(Sentence(f"node {node} {reason}"))
    stacks: dict[tuple[StackFrame, ...], list[int]] = {}
    for rank in look.ranks:
        if rank.stack:
            stacks.setdefault(rank.stack, []).append(rank.activity.rank)
    for frames, ranks in stacks.items():
        lines += ["", f"-- stack of {rank_list(ranks)}, the innermost call first", *(_frame(frame) for frame in frames)]
    return _text(lines, None)


def _head(hang: Hang) -> list[Sentence | str]:
    still = f"No progress for {hang.still_s:.0f} s; the limit was {hang.limit_s:.0f} s."
    reason: list[Sentence | str] = [Sentence(hang.reason), ""] if hang.reason else []
    return [f"-- hang: {hang.kind}", Sentence(hang.text), "", *reason, Sentence(still), ""]


def _rank(look: RankLook) -> Iterator[Sentence | str]:
    """Yield what one rank does, the processes that it started, and its process groups."""
    activity = rank_activity(look)
    steps = "" if look.steps is None else f", {look.steps} steps made" if look.step is None else f", step {look.step}"
    phase = "" if look.phase is None else f", phase {look.phase}"
    place = f" ({activity.place})" if activity.place and activity.place not in activity.text else ""
    yield Sentence(f"rank {look.rank} is {activity.text}{place}{steps}{phase}")
    if look.device:
        yield Sentence(look.device, "  ")
    yield from _process("process", look.process)
    for worker in look.workers:
        yield from _process("worker", worker)
    if look.collectives.unreadable:
        yield Sentence(f"recorder unreadable: {look.collectives.unreadable}", "  ")
    for group in look.collectives.groups:
        yield Sentence(_group(group), "  ")


def _process(label: str, look: ProcessLook) -> Iterator[Sentence | str]:
    """Yield what the kernel shows of one process."""
    waits = look.waits
    if waits is None:
        yield f"  {label} {look.pid}: did not answer"
        return
    parts = [f"state {waits.state}" if waits.state else "gone"]
    parts += [f"in {waits.wchan}"] if waits.wchan else []
    parts += [f"{look.before.cpu_s:.1f} s CPU"] if look.before is not None else []
    yield Sentence(f"{label} {look.pid} {look.name}: {', '.join(parts)}".replace(" :", ":"), "  ")
    if waits.file is not None:
        yield f"    {waits.file.call} of {clean(waits.file.path)}"
        yield f"    on {clean(waits.file.mount) or 'an unknown mount'} {waits.file.fs_type}".rstrip()
    for awaited in look.awaits:
        yield f"    waits for {clean(awaited.text)}"
    if not look.stacks and look.no_stacks:
        yield Sentence(f"no stacks: {look.no_stacks}", "    ")


def _group(group: ProcessGroup) -> str:
    """Return a process group: the collective under way in it, or its last one."""
    known = [group.backend] if group.backend else []
    known += [rank_list(group.ranks)] if group.ranks else []
    known += [f"timeout {group.timeout_s:.0f} s"] if group.timeout_s is not None else []
    pending = group.pending
    done = next((collective for collective in reversed(group.last) if collective.done), None)
    parts = [f"in {pending.text}{_sizes(pending.sizes)}"] if pending is not None else []
    parts += [f"last over: {done.text}"] if done is not None else []
    return f"group {group.name} ({', '.join(known)}): {', '.join(parts) or 'no collective recorded'}"


def _sizes(sizes: tuple[tuple[int, ...], ...]) -> str:
    """Return ` of 8x8, 8`; "" where a collective has no tensors."""
    shown = ", ".join("x".join(map(str, sizes_of)) or "1" for sizes_of in sizes[:3])
    return f" of {shown}{', ...' if len(sizes) > 3 else ''}" if shown else ""  # noqa: PLR2004 - as many as fit a line


def _stacks(look: Look) -> Iterator[tuple[str, tuple[StackFrame, ...]]]:
    """Yield each stack once: of the main threads, of the workers, of other threads."""
    mains: dict[tuple[StackFrame, ...], list[int]] = {}
    others: dict[tuple[StackFrame, ...], list[int]] = {}
    for rank in look.ranks:
        for index, thread in enumerate(rank.process.stacks):
            (others if index else mains).setdefault(thread.frames, []).append(rank.rank)
    for frames, ranks in mains.items():
        yield rank_list(ranks), frames
    for rank in look.ranks:
        for worker in rank.workers:
            for thread in worker.stacks[:1]:
                yield f"worker {worker.pid} of rank {rank.rank}", _own(thread)
    for frames, ranks in others.items():
        if frames:
            yield f"another thread of {rank_list(set(ranks))}", frames


def _own(thread: ThreadStack) -> tuple[StackFrame, ...]:
    """Return a worker's own frames."""
    loop = next((at for at, frame in enumerate(thread.frames) if frame.module.startswith(_WORKER_LOOP)), len(thread.frames))
    return thread.frames[: loop + 1]


def _frame(frame: StackFrame) -> str:
    return f"{'  ' if frame.is_library else '> '}{clean(frame.file)}:{frame.line} {frame.function}"


def _text(lines: Iterable[Sentence | str], surface: Surface | None) -> str:
    return "".join(f"{text}\n" for line in lines for text in ([line] if isinstance(line, str) else _folded(line, surface)))


def _folded(sentence: Sentence, surface: Surface | None) -> list[str]:
    """Return a sentence in lines, the further ones indented by two."""
    indent, text = sentence.indent, clean(sentence.text)
    if surface is None or not surface.folds:
        return [indent + text]
    first, *further = folded(text, surface.width - len(indent) - 2)
    return [indent + first, *(f"{indent}  {line}" for line in further)]
