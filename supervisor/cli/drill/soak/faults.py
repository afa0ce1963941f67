"""The faults of a soak: what each is, which causes are right for it, and how it is put into the job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from checkpointing.io import staging
from supervisor.cli.drill.drilled_job import is_alive, send
from supervisor.cli.drill.soak.memory_group import ROOM_BYTES
from supervisor.cli.drill.soak.neighbours import is_guardian
from supervisor.cli.drill.soak.schedule import SoakFault
from supervisor.core.model import Cause
from supervisor.core.values import Struct
from supervisor.guardian import process_tree
from supervisor.observe.ranks.heartbeats import RankHeartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from supervisor.cli.drill.drilled_job import DrilledJob
    from supervisor.cli.drill.soak.memory_group import MemoryGroup

#: A rank is stopped after so many steps: before, the longer limit of hang.phase_s holds (docs/explanation/hangs.md).
_STEPS_BEFORE_STOP: Final = 25


class FaultRow(Struct, frozen=True):
    """One kind. title: `{rank}` took it. causes: the right ones; none: the job is to continue, without a report.

    place: what the ranks must have done for it (`_supervise_soak.py`), "" for nothing. absent: why it was never possible. goes_on: the job
    may train on without a restart.
    """

    title: str
    causes: frozenset[Cause]
    place: str = ""
    absent: str = ""
    goes_on: bool = False


_KILLED = frozenset({Cause.KILLED_UNKNOWN})
ROWS: Final[Mapping[SoakFault, FaultRow]] = {
    SoakFault.RANK: FaultRow("rank {rank} killed", _KILLED),
    SoakFault.AGENT: FaultRow("agent killed", _KILLED, absent="no agent is between supervise and the ranks"),
    SoakFault.SUPERVISOR: FaultRow("supervisor killed", _KILLED),
    SoakFault.STOP: FaultRow(
        "rank {rank} stopped",
        frozenset({Cause.HANG_NO_ERROR}),
        absent=f"no rank made {_STEPS_BEFORE_STOP} steps in one attempt; before, a hang is looked for after hang.phase_s",
    ),
    SoakFault.TORN: FaultRow("rank {rank} killed in a save", _KILLED, "save", "no save by torch.save or DCP was seen in training"),
    SoakFault.LOADER: FaultRow(
        "rank {rank}'s loader slow", frozenset(), "loader", "no batch was seen to come from a DataLoader of torch", goes_on=True
    ),
    SoakFault.OOM: FaultRow(
        "rank {rank} out of memory", frozenset({Cause.HOST_OOM, Cause.CUDA_OOM}), "step", "no optimizer of torch was seen to step"
    ),
    SoakFault.DISK: FaultRow(
        "rank {rank}'s disk full", frozenset({Cause.DISK_FULL}), "save", "no save by torch.save or DCP was seen in training", goes_on=True
    ),
}


class Strike(Struct, frozen=True):
    """A fault that is in the job: when (Unix seconds), whose it is (-1: nobody's), and the ranks of before by number."""

    kind: SoakFault
    t: float
    rank: int
    ranks: Mapping[int, RankHeartbeat]

    @property
    def title(self) -> str:
        """The fault in words."""
        return ROWS[self.kind].title.format(rank=self.rank)

    def is_over(self, beats: Iterable[RankHeartbeat]) -> bool:
        """Return whether all ranks train again: as new processes, or where the fault may pass over them, two steps on."""
        now = {beat.rank: beat for beat in beats if is_alive(beat)}
        goes_on = ROWS[self.kind].goes_on
        return now.keys() >= self.ranks.keys() and all(_trains(now[rank], before, goes_on=goes_on) for rank, before in self.ranks.items())


def _trains(beat: RankHeartbeat, before: RankHeartbeat, *, goes_on: bool) -> bool:
    if (beat.pid, beat.start_ticks) != (before.pid, before.start_ticks):
        return beat.steps > 0
    return goes_on and beat.steps >= before.steps + 2


class Faults:
    """Puts faults into one job. group: the control group in which its memory can run out; None: an exception is raised instead."""

    def __init__(self, job: DrilledJob, group: MemoryGroup | None) -> None:
        self._job, self._group = job, group
        self._orders = 0

    def possible(self, kinds: Iterable[SoakFault], beats: Sequence[RankHeartbeat]) -> set[SoakFault]:
        """Return which of these can be put into the job now."""
        possible = {kind for kind in kinds if not ROWS[kind].place or (self._job.scratch / f"drill-seen-{ROWS[kind].place}").exists()}
        if not any(beat.steps >= _STEPS_BEFORE_STOP for beat in beats):
            possible.discard(SoakFault.STOP)
        if self._agent(beats) is None:
            possible.discard(SoakFault.AGENT)
        return possible

    def strike(self, kind: SoakFault, rank: int, beats: Sequence[RankHeartbeat], wait: Callable[[Callable[[], Any]], Any]) -> Strike | None:
        """Put the fault into the job; None where the job had ended, or the time was over, before it could be.

        rank: whose fault it is; a save is that of the rank that saves first. beats: of all ranks. wait: asks until there is an answer.
        """
        ranks, now = {beat.rank: beat for beat in beats}, time.time()
        if kind is SoakFault.SUPERVISOR:
            os.kill(self._job.pid, signal.SIGKILL)  # a child that nobody has waited for: the pid is still its
            return Strike(kind, now, -1, ranks)
        if kind is SoakFault.AGENT:
            agent = self._agent(beats)
            sent = agent is not None and send(*agent, signal.SIGKILL)
            return Strike(kind, now, -1, ranks) if sent else None
        if kind in {SoakFault.RANK, SoakFault.STOP}:
            sent = send(ranks[rank].pid, ranks[rank].start_ticks, signal.SIGKILL if kind is SoakFault.RANK else signal.SIGSTOP)
            return Strike(kind, now, rank, ranks) if sent else None
        return self._order(kind, None if ROWS[kind].place == "save" else rank, wait)

    def _order(self, kind: SoakFault, rank: int | None, wait: Callable[[Callable[[], Any]], Any]) -> Strike | None:
        """Order the ranks to do it, and await the one that takes it."""
        self._orders += 1
        order, taken = self._job.scratch / "drill-order", self._job.scratch / f"drill-struck-{self._orders}"
        content: dict[str, Any] = {"number": self._orders, "kind": kind.value, "rank": rank}
        if kind is SoakFault.OOM and self._group is not None:
            content |= {"kind": "memory", "bytes": self._group.tighten() + 4 * ROOM_BYTES}
        staging.write(str(order), json.dumps(content).encode(), is_durable=False)

        def take() -> dict[str, Any] | None:
            with contextlib.suppress(OSError, ValueError):  # it is not there, or only half
                row: dict[str, Any] = json.loads(taken.read_text())
                return row
            return None

        try:
            row = wait(take)
        finally:
            order.unlink(missing_ok=True)
        ranks = {beat.rank: beat for beat in self._job.beats()}  # the slot of a rank that has died stays readable
        return Strike(kind, float(row["t"]), int(row["rank"]), ranks) if row else None

    def undo(self, strike: Strike) -> None:
        """Take the rest of a fault back: a limit, a stopped rank."""
        if self._group is not None:
            self._group.loosen()
        if strike.kind is SoakFault.STOP:
            beat = strike.ranks[strike.rank]
            send(beat.pid, beat.start_ticks, signal.SIGCONT)

    def _agent(self, beats: Iterable[RankHeartbeat]) -> tuple[int, int] | None:
        """Return pid and start ticks of the process that started a rank, and is neither a rank nor the guardian."""
        ranks = {beat.pid for beat in beats}
        for beat in beats:
            process = process_tree.read(beat.pid)
            parent = process_tree.read(process.ppid) if process is not None and process.start_ticks == beat.start_ticks else None
            if parent is not None and parent.pid not in {*ranks, self._job.pid, 1} and not is_guardian(parent.pid):
                return parent.key
        return None
