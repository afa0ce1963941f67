"""One node's report on its ranks to the coordinator, in a look at all nodes: a text of 64 KiB at most, whatever its ranks do. Pure.

A node compares its own looks, because their counters and their clock are its own; it sends what its two newest looks show. A process
group, and a stack, appears once for all ranks that share it, and the members of a group as runs of numbers. A long text loses its
stacks first, then the members of the groups, then ranks that wait like the others.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import msgspec

from checkpointing.io import typed
from supervisor.core.model import Phase
from supervisor.core.values import Struct, replace
from supervisor.observe.hangs.diagnosis import ComparedRank, compared
from supervisor.observe.hangs.frames import StackFrame
from supervisor.observe.hangs.rank_activity import ActivityKind
from supervisor.observe.hangs.rank_progress import RankProgress, compare
from supervisor.observe.hangs.recorder import ProcessGroup
from supervisor.observe.hangs.threshold import Limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.observe.hangs.look import Look
    from supervisor.observe.hangs.watch import Stillness

MOST_BYTES = 64 * 1024
#: So many innermost frames of each stack are sent; fewer if that is too much.
STACK_DEPTHS = (12, 4, 0)
#: So long is one text of a rank; so many ranks that moved are named.
MOST_TEXT, MOST_MOVED = 400, 8
#: Equal differences of this many numbers and more are a run.
Run = tuple[int, int, int]


class NodeLook(Struct, frozen=True, omit_defaults=True):
    """One node's part of a look at all nodes. number: of the look; previous: of the look that it is compared with, 0: none.

    problem: why its ranks were not looked at, "" if they were. still_s, limit, life, has_trained: as in watch.Stillness. has_lived: the
    last sign of life, or pause, came after the previous look. moved: ranks that moved since, each with what showed it. groups, members: the
    process groups that ranks wait in, and the members of each as runs (first, count, difference). stacks: of the ranks. group_of,
    stack_of: of each rank the number of its group and of its stack, -1 without. left_out: ranks for which there was no room.
    """

    number: int
    previous: int = 0
    problem: str = ""
    still_s: float | None = None
    limit: Limit = Limit(0.0, Phase.UNKNOWN, calibrated=False)
    life: str = ""
    has_lived: bool = False
    has_trained: bool = False
    moved: tuple[tuple[int, str], ...] = ()
    ranks: tuple[ComparedRank, ...] = ()
    groups: tuple[ProcessGroup, ...] = ()
    members: tuple[tuple[Run, ...], ...] = ()
    group_of: tuple[int, ...] = ()
    stacks: tuple[tuple[StackFrame, ...], ...] = ()
    stack_of: tuple[int, ...] = ()
    left_out: int = 0


class NodeLooks:
    """Compares each look at the ranks of this node with the one before it. From one thread at a time."""

    def __init__(self) -> None:
        self._last: tuple[int, Look, float] | None = None

    def text(self, number: int, look: Look, stillness: Stillness) -> str:
        """Return the message of a look."""
        last, self._last = self._last, (number, look, stillness.since_t)
        first = look if last is None else last[1]
        progress = RankProgress() if last is None else compare(first, look)
        frame = NodeLook(
            number,
            0 if last is None else last[0],
            still_s=stillness.still_s,
            limit=stillness.limit,
            life=stillness.life[:MOST_TEXT],
            has_lived=last is not None and stillness.still_s is not None and stillness.since_t > last[2],
            has_trained=stillness.has_trained,
            moved=tuple((rank, text[:MOST_TEXT]) for rank, text in progress.moved[:MOST_MOVED]),
        )
        return bounded(frame, compared(first, look, progress))


def bounded(frame: NodeLook, compared_ranks: Sequence[ComparedRank]) -> str:
    """Return a look with these ranks as a text that is not too long."""
    ranks = [_without_ballast(rank) for rank in compared_ranks]
    ranks.sort(key=lambda rank: rank.activity.kind is ActivityKind.WAITS)  # who waits explains least
    for depth in STACK_DEPTHS:
        if len((text := _encoded(frame, ranks, depth)).encode()) <= MOST_BYTES:
            return text
    ranks = [_without_members(rank) for rank in ranks]
    most = len(ranks)
    while len((text := _encoded(replace(frame, left_out=len(ranks) - most), ranks[:most], 0)).encode()) > MOST_BYTES and most:
        most = most * 3 // 4
    return text


def text_without(number: int, problem: str, life: str = "") -> str:
    """Return the message of a node that cannot look at its ranks, for the reason `problem`. life: why they could not hang."""
    return _text(NodeLook(number, problem=problem, still_s=0.0 if life else None, life=life, has_lived=bool(life)))


def read(text: str) -> NodeLook:
    """Return what a node sent, its ranks in order, each with its group and its stack. Raises ValueError where it cannot be read."""
    try:
        look = typed.decoded(text, NodeLook)
        groups = [
            replace(group, ranks=tuple(itertools.chain.from_iterable(_numbers(run) for run in runs)))
            for group, runs in zip(look.groups, look.members, strict=True)
        ]
        ranks = [
            replace(
                rank,
                activity=replace(rank.activity, group=groups[group] if group >= 0 else None),
                stack=look.stacks[stack] if stack >= 0 else (),
            )
            for rank, group, stack in zip(look.ranks, look.group_of, look.stack_of, strict=True)
        ]
    except (msgspec.MsgspecError, ValueError, IndexError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return replace(look, ranks=tuple(sorted(ranks, key=lambda rank: rank.activity.rank)))


def _without_ballast(rank: ComparedRank) -> ComparedRank:
    """Return a rank with all that the diagnosis uses, its texts cut, and of its group no collective but the one that it waits in."""
    activity = rank.activity
    group = None if activity.group is None else replace(activity.group, last=())
    collective = None if activity.collective is None else replace(activity.collective, sizes=())
    awaits = tuple(replace(awaited, text=awaited.text[:MOST_TEXT], name=awaited.name[:MOST_TEXT]) for awaited in activity.awaits)
    activity = replace(activity, text=activity.text[:MOST_TEXT], group=group, collective=collective, awaits=awaits)
    texts = {name: getattr(rank, name)[:MOST_TEXT] for name in ("busy", "slow", "working", "recorded", "device")}
    return replace(rank, activity=activity, **texts)


def _without_members(rank: ComparedRank) -> ComparedRank:
    group = rank.activity.group
    return rank if group is None else replace(rank, activity=replace(rank.activity, group=replace(group, ranks=())))


def _encoded(frame: NodeLook, ranks: Sequence[ComparedRank], depth: int) -> str:
    groups: dict[ProcessGroup, int] = {}
    stacks: dict[tuple[StackFrame, ...], int] = {}
    group_of, stack_of, rows = [], [], []
    for rank in ranks:
        group, stack = rank.activity.group, rank.stack[:depth]
        group_of.append(-1 if group is None else groups.setdefault(group, len(groups)))
        stack_of.append(stacks.setdefault(stack, len(stacks)) if stack else -1)
        rows.append(replace(rank, activity=replace(rank.activity, group=None), stack=()))
    look = replace(
        frame,
        ranks=tuple(rows),
        groups=tuple(replace(group, ranks=()) for group in groups),
        members=tuple(_runs(group.ranks) for group in groups),
        group_of=tuple(group_of),
        stacks=tuple(stacks),
        stack_of=tuple(stack_of),
    )
    return _text(look)


def _text(look: NodeLook) -> str:
    """Return a look as JSON. A name of a file or a process that is not UTF-8 gets question marks: msgspec would refuse the whole look."""
    text = json.dumps(msgspec.to_builtins(look), ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace").decode()


def _runs(numbers: Sequence[int]) -> tuple[Run, ...]:
    """Return numbers as runs of equal differences: 0, 8, 16, 24 is (0, 4, 8)."""
    runs: list[Run] = []
    for number in numbers:
        if runs:
            first, count, difference = runs[-1]
            step = number - (first + (count - 1) * difference)
            if count == 1 or step == difference:
                runs[-1] = (first, count + 1, step)
                continue
        runs.append((number, 1, 1))
    return tuple(runs)


def _numbers(run: Run) -> range | tuple[int, ...]:
    first, count, difference = run
    return range(first, first + count * difference, difference) if difference else (first,) * count
