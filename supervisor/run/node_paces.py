"""Compares the pace of all nodes, at the coordinator, and posts PaceChanged: each COMPARE_S, in a thread of its own.

The nodes' messages are decoded there, so that the deciding loop reads nothing of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.cluster.reader import NodeStanding
from supervisor.config.intervals import COMPARE_S
from supervisor.core.state import JobState, Stage
from supervisor.core.training_events import STRAGGLER, PaceChanged
from supervisor.observe.pace.nodes import NodesJudge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisor.run.job_nodes import JobNodes
    from supervisor.run.loop import Loop
    from supervisor.run.threads import Threads


class NodePaces:
    """The paces of the nodes of one job."""

    def __init__(self, loop: Loop, threads: Threads, nodes: JobNodes) -> None:
        self._loop, self._threads, self._nodes = loop, threads, nodes
        self._judge, self._attempt = NodesJudge(), 0
        self._compared_t = float("-inf")

    def tick(self) -> None:
        """Compare them where that is due. On the loop's thread."""
        now, state = self._loop.clock.now(), self._loop.state
        compares = state.stage is Stage.RUNNING and len(state.attempt.members) > 1 and self._nodes.coordinator_host == ""
        if compares and not 0 <= now - self._compared_t < COMPARE_S:
            self._compared_t = now
            self._threads.recur("paces", lambda: self._compare(now, state, self._nodes.standings()))

    def _compare(self, t: float, state: JobState, texts: Mapping[str, str]) -> None:
        attempt = state.attempt
        if attempt.number != self._attempt:
            self._judge, self._attempt = NodesJudge(), attempt.number
        numbers = {node: number for number, node in enumerate(attempt.members)}
        standings = ((node, NodeStanding.read(text)) for node, text in texts.items() if node in numbers)
        current = {node: standing for node, standing in standings if standing is not None and standing.attempt == attempt.number}
        for change in self._judge.take(t, {node: standing.pace for node, standing in current.items() if standing.pace is not None}):
            number, standing = numbers[change.node], current[change.node]
            text = change.text(f"node {number} ({change.node.partition('/')[0]})", standing.gpu, standing.health)
            self._loop.post(PaceChanged(t, attempt.number, STRAGGLER, text, change.rank, change.is_over, number))
