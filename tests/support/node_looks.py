"""Looks of ranks on several nodes, as the nodes send them: what each rank does is set by the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Phase
from supervisor.core.values import replace
from supervisor.observe.hangs.frames import StackFrame, ThreadStack
from supervisor.observe.hangs.look import Look, ProcessLook, RankLook
from supervisor.observe.hangs.node_look import NodeLooks
from supervisor.observe.hangs.procfs import ProcessCounters, ThreadWait
from supervisor.observe.hangs.recorder import Collective, ProcessGroup, RecordedCollectives
from supervisor.observe.hangs.threshold import Limit
from supervisor.observe.hangs.watch import Stillness

if TYPE_CHECKING:
    from collections.abc import Sequence

SITE = "/venv/lib/python3.11/site-packages"
#: What a real rank has below its line: DDP's backward, and the launcher's frames.
BELOW = tuple(StackFrame(f"{SITE}/torch/nn/modules/module.py", 1500 + n, "_call_impl") for n in range(20))
#: When a job of nodes begins, and its ranks stand still.
BEGAN_T = 1000.0
TRAIN = Limit(60.0, Phase.TRAIN, calibrated=True)


def stack(*frames: StackFrame) -> tuple[ThreadStack, ...]:
    """Return the stacks of a rank with these innermost frames."""
    return (ThreadStack("0x1", (*frames, *BELOW, StackFrame("/me/train.py", 190, "<module>"))),)


def at(line: int, function: str = "train") -> StackFrame:
    """Return a frame of the script."""
    return StackFrame("/me/train.py", line, function)


def waiting(rank: int, world: int, operation: str = "all_reduce", *, sequence: int = 1841, line: int = 61) -> RankLook:
    """Return a rank that waits in a collective of all ranks."""
    last = (Collective("all_reduce", sequence - 1, done=True), Collective(operation, sequence, done=False, sizes=((8, 8),)))
    inner = StackFrame(f"{SITE}/torch/distributed/distributed_c10d.py", 2900, operation)
    groups = (ProcessGroup("0", tuple(range(world)), "nccl", 600.0, last),)
    return _rank(rank, stack(inner, at(line)), RecordedCollectives(groups))


def elsewhere(rank: int, world: int, line: int = 112, function: str = "evaluate", *, wchan: str = "hrtimer_nanosleep") -> RankLook:
    """Return a rank that is in no collective; its last one was that before the one that the others wait in."""
    groups = (ProcessGroup("0", tuple(range(world)), "nccl", 600.0, (Collective("all_reduce", 1840, done=True),)),)
    return _rank(rank, stack(at(line, function)), RecordedCollectives(groups), wchan)


def gone(rank: int, *, left_with_0: bool = False) -> RankLook:
    """Return a rank whose process is gone."""
    return RankLook(rank, rank % 8, ProcessLook(1000 + rank, 1, waits=ThreadWait("Z"), no_stacks="it is gone"), left_with_0=left_with_0)


def _rank(rank: int, stacks: tuple[ThreadStack, ...], collectives: RecordedCollectives, wchan: str = "futex_do_wait") -> RankLook:
    process = ProcessLook(1000 + rank, 1, "python", ThreadWait("S", wchan), stacks, "", counted(0.0), counted(0.1))
    return RankLook(rank, rank % 8, process, collectives=collectives, phase=Phase.TRAIN, steps=10, step=10)


def counted(t: float, cpu_s: float = 0.0, n_bytes: int = 0) -> ProcessCounters:
    """Return the counters of a process at a time."""
    return ProcessCounters(t, 1 + cpu_s, 1 + cpu_s, 100, 5000 + n_bytes, 0, n_bytes)


def later(look: RankLook, t: float = 30.0, **used: float) -> RankLook:
    """Return the same rank at a later time; used: CPU time and bytes since."""
    before, after = counted(t, **used), counted(t + 0.1, **used)  # type: ignore[arg-type]  # numbers
    return replace(look, process=replace(look.process, before=before, after=after))


class VirtualNode:
    """One node as the coordinator hears of it. still_s: without a sign of life at BEGAN_T; life_t: the last sign."""

    def __init__(self, name: str, *ranks: RankLook, limit: Limit = TRAIN, still_s: float = 61.0) -> None:
        self.name, self.ranks, self.limit = name, ranks, limit
        self.life_t, self.life, self.used = BEGAN_T - still_s, "rank 0 made a step", dict[int, dict[str, float]]()
        self.looks = NodeLooks()

    def text(self, number: int, t: float) -> str:
        """Return what it sends of look `number`."""
        ranks = tuple(rank if rank.process.is_gone else later(rank, t, **self.used.get(rank.rank, {})) for rank in self.ranks)
        stillness = Stillness(t - self.life_t, self.life_t, self.limit, self.life, has_trained=True)
        return self.looks.text(number, Look(t, ranks), stillness)


def nodes_of(ranks: Sequence[RankLook], each: int = 8) -> list[VirtualNode]:
    """Return the nodes of a job with so many ranks each, named as people are shown them."""
    return [VirtualNode(f"n{n}:{n}", *ranks[n * each : (n + 1) * each]) for n in range(len(ranks) // each)]
