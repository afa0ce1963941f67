"""Compares the pace of all nodes of one attempt, at the coordinator. Pure, but for its memory.

In a synchronous training all nodes make the same steps at the same time. Only the time of a step that a node needs by itself differs
(NodePace.own_s): the node that the others wait for hardly waits. Nodes that do not wait for each other differ by the same number.

    slow   it is busy nearly all the time, and needs SLOWER times what the median of the others needs, in every comparison over SLOW_NODE_S
    over   it needs less than AGAIN times that, for the time of a window

A pace that does not change any more (an evaluation, a save, a node that is not heard) is compared with nothing: such time neither makes
a node slow, nor as fast as the others again. Where all nodes are slow together none is.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.config.intervals import COMPARE_S, PACE_WINDOW_S, SLOW_NODE_S
from supervisor.core.units import step_time_text
from supervisor.core.values import Struct
from supervisor.core.watch.loss_and_pace import with_condition
from supervisor.observe.pace.judge import BUSY, SLOWER, NodePace, times_text

if TYPE_CHECKING:
    from collections.abc import Mapping

AGAIN = 1.1
#: From this share on the time that the hypervisor keeps from a node is named.
STOLEN = 0.1
#: A pace is compared for a window after it changed, and for so many of its steps where these are long.
FRESH_STEPS = 3
#: A comparison counts for no more than so many intervals: who was itself away has not watched.
MOST_INTERVALS = 3


class SlowNode(Struct, frozen=True):
    """A node became slow, or is as fast as the others again (`is_over`). rank: its slow one as it was named when it became slow.

    ratio: how much longer it needs for a step than the others' median. waited_for: the others make no more steps than it does.
    """

    node: str
    pace: NodePace
    ratio: float
    others_s: float
    waited_for: bool = True
    rank: int | None = None
    is_over: bool = False

    def text(self, name: str, gpu: str = "", health: str = "") -> str:
        """Return it as a sentence. name: what people call the node. gpu: of the rank. health: the faults of it and the node."""
        pace = self.pace
        if self.is_over:
            return f"{name} is as fast as the others again"
        times = f"{step_time_text(pace.own_s)} by itself, the others {step_time_text(self.others_s)}"
        rank = "" if self.rank is None else f": rank {self.rank}"
        why = f"{' ' if rank else ': its slowest rank '}{pace.why}" if pace.why else ""
        stolen = f"; the hypervisor keeps {100 * pace.stolen:.0f} % of its processors' time" if pace.stolen >= STOLEN else ""
        text = f"{name} {times_text(self.ratio)} ({times}){', and the others wait for it' if self.waited_for else ''}{rank}{why}"
        return with_condition(text, gpu, health) + stolen


@dataclass(slots=True)
class _Watched:
    """The memory of one node. fresh_t: when its pace last changed. above_s, below_s: for how long it has been so, on end."""

    intervals: int = -1
    fresh_t: float = 0.0
    above_s: float = 0.0
    below_s: float = 0.0
    is_slow: bool = False
    rank: int | None = None


class NodesJudge:
    """The nodes of one attempt."""

    def __init__(self) -> None:
        """Begin with no node."""
        self._nodes: dict[str, _Watched] = {}
        self._t: float | None = None

    def take(self, t: float, paces: Mapping[str, NodePace]) -> list[SlowNode]:
        """Return what changes with the newest pace of each node that has one."""
        passed_s = 0.0 if self._t is None else min(t - self._t, MOST_INTERVALS * COMPARE_S)
        self._t = t
        fresh: dict[str, NodePace] = {}
        for node, pace in paces.items():
            watched = self._nodes.setdefault(node, _Watched())
            if pace.intervals != watched.intervals:
                watched.intervals, watched.fresh_t = pace.intervals, t
            if t - watched.fresh_t <= max(PACE_WINDOW_S, FRESH_STEPS * pace.step_s):
                fresh[node] = pace
        if len(fresh) < 2:  # noqa: PLR2004 (a node and another)
            return []
        own = sorted(pace.own_s for pace in fresh.values())
        usual_s = sorted(pace.step_s for pace in fresh.values())[(len(fresh) - 1) // 2]
        changes: list[SlowNode] = []
        for node, pace in fresh.items():
            others_s = max(_median_without(own, pace.own_s), 0.01 * pace.step_s)
            change = SlowNode(node, pace, pace.own_s / others_s, others_s, waited_for=pace.step_s < SLOWER * usual_s)
            changes += self._changed(self._nodes[node], change, passed_s)
        return changes

    def _changed(self, watched: _Watched, change: SlowNode, passed_s: float) -> list[SlowNode]:
        is_busy = change.pace.busy >= BUSY
        watched.above_s = watched.above_s + passed_s if is_busy and change.ratio >= SLOWER else 0.0
        watched.below_s = watched.below_s + passed_s if change.ratio < AGAIN or not is_busy else 0.0
        if not watched.is_slow and watched.above_s >= SLOW_NODE_S:
            watched.is_slow, watched.rank = True, change.pace.rank
            return [_named(change, watched, is_over=False)]
        if watched.is_slow and watched.below_s >= PACE_WINDOW_S:
            watched.is_slow = False
            return [_named(change, watched, is_over=True)]
        return []


def _named(change: SlowNode, watched: _Watched, *, is_over: bool) -> SlowNode:
    return SlowNode(change.node, change.pace, change.ratio, change.others_s, change.waited_for, watched.rank, is_over)


def _median_without(numbers: list[float], own: float) -> float:
    """Return the median of sorted numbers without one that is among them. There are two at least."""
    at, count = bisect_left(numbers, own), len(numbers) - 1

    def remaining(place: int) -> float:
        return numbers[place if place < at else place + 1]

    return remaining(count // 2) if count % 2 else (remaining(count // 2 - 1) + remaining(count // 2)) / 2
