"""Samples the ranks of this node once a second, from their heartbeats and the kernel's counters, and posts PaceChanged. One per attempt.

It costs two small reads of /proc for each rank and second, and nothing in the ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Phase
from supervisor.core.training_events import PaceChanged
from supervisor.observe.pace.judge import PaceJudge, RankSample
from supervisor.observe.pace.usage import thread_usage
from supervisor.observe.ranks.heartbeats import LEAST_APART_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisor.core.events import Event
    from supervisor.observe.ranks.heartbeats import RankHeartbeat


class PaceWatch:
    """The pace of one attempt. Called from one thread at a time."""

    def __init__(self, attempt: int, post: Callable[[Event], None]) -> None:
        """Take where to post."""
        self._judge = PaceJudge()
        self._attempt, self._post = attempt, post
        self._sampled_t: float | None = None

    def sample(self, beats: Sequence[RankHeartbeat], t: float) -> None:
        """Take the heartbeats that were read at `t`."""
        if self._sampled_t is not None and 0 <= t - self._sampled_t < LEAST_APART_S:
            return
        self._sampled_t = t
        ranks: dict[int, RankSample] = {}
        for beat in beats:
            usage = thread_usage(beat.pid)
            if usage is None or beat.last_step_ns is None:
                continue
            trains = beat.phase is Phase.TRAIN
            ranks[beat.rank] = RankSample(beat.steps, beat.last_step_ns, usage.run_ns, usage.wait_ns, usage.is_blocked, trains)
        for news in self._judge.take(t, ranks):
            self._post(PaceChanged(t, self._attempt, news.kind.value, news.text, news.rank, news.is_over))
