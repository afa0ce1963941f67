"""Samples the ranks of this node once a second, from their heartbeats and the kernel's counters, and posts PaceChanged. One per attempt.

It costs two or three small reads of /proc for each rank and second. What the ranks sample themselves
(`_supervise_shim/step_parts.py`) gives the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.config.intervals import PACE_WINDOW_S
from supervisor.core import step_shares
from supervisor.core.model import Phase
from supervisor.core.training_events import PaceChanged
from supervisor.core.values import replace
from supervisor.observe.pace.judge import NodePace, PaceJudge, RankSample
from supervisor.observe.pace.usage import stolen_ticks, thread_usage
from supervisor.observe.ranks.heartbeats import LEAST_APART_S
from supervisor.observe.ranks.step_parts import StepPartsWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisor.core.events import Event
    from supervisor.observe.ranks.heartbeats import RankHeartbeat


class StealWatch:
    """The share of the processors' time that the hypervisor keeps from this machine, measured anew in each window."""

    def __init__(self) -> None:
        """Begin with nothing measured."""
        self._since_t, self._ticks = float("-inf"), stolen_ticks()
        self._share = 0.0

    def take(self, t: float) -> float:
        """Return the share of the last whole window, 0 where it is not known."""
        if t - self._since_t >= PACE_WINDOW_S:
            before, self._ticks = self._ticks, stolen_ticks()
            if before is not None and self._ticks is not None and self._ticks[1] > before[1]:
                self._share = (self._ticks[0] - before[0]) / (self._ticks[1] - before[1])
            self._since_t = t
        return self._share


class PaceWatch:
    """The pace of one attempt. Called from one thread at a time."""

    def __init__(self, attempt: int, post: Callable[[Event], None]) -> None:
        """Take where to post."""
        self._judge = PaceJudge()
        self._attempt, self._post = attempt, post
        self._sampled_t: float | None = None
        self._steal = StealWatch()
        self._node_pace: NodePace | None = None
        self.parts = StepPartsWatch()

    @property
    def node_pace(self) -> NodePace | None:
        """The pace of this node's ranks over the last window; None: not known yet. From any thread."""
        return self._node_pace

    def sample(self, beats: Sequence[RankHeartbeat], t: float) -> None:
        """Take the heartbeats that were read at `t`."""
        if self._sampled_t is not None and 0 <= t - self._sampled_t < LEAST_APART_S:
            return
        self._sampled_t = t
        self.parts.take(beats, t)
        ranks: dict[int, RankSample] = {}
        for beat in beats:
            usage = thread_usage(beat.pid)
            if usage is None or beat.last_step_ns is None:
                continue
            trains, loader_ns = beat.phase is Phase.TRAIN, beat.parts.loader_ns if beat.parts is not None else 0
            ranks[beat.rank] = RankSample(
                beat.steps, beat.last_step_ns, usage.run_ns, usage.wait_ns, usage.is_blocked, trains, usage.is_asleep, loader_ns
            )
        news_of_ranks = self._judge.take(t, ranks, step_shares.reasons(self.parts.ranks))
        pace, stolen = self._judge.node_pace(), self._steal.take(t)
        self._node_pace = None if pace is None else replace(pace, stolen=stolen)
        for news in news_of_ranks:
            self._post(PaceChanged(t, self._attempt, news.kind.value, news.text, news.rank, news.is_over))
