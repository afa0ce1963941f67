"""Samples the ranks of this node once a second, from their heartbeats and the kernel's counters, and posts PaceChanged. One per attempt.

It costs two small reads of /proc for each rank and second, and nothing in the ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Phase
from supervisor.core.training_events import PaceChanged
from supervisor.observe.pace.judge import GpuFloor, PaceJudge, RankSample
from supervisor.observe.pace.usage import thread_usage
from supervisor.observe.ranks.heartbeats import LEAST_APART_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from supervisor.config.watch_settings import PaceSection
    from supervisor.core.events import Event
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

    #: By rank: when its GPU was sampled last, and the per cent of the time that it was busy.
    BusyGpus = Mapping[int, tuple[float, float]]


class PaceWatch:
    """The pace of one attempt. Called from one thread at a time."""

    def __init__(self, limits: PaceSection, attempt: int, post: Callable[[Event], None], gpus: Callable[[], BusyGpus] = dict) -> None:
        """Take the limits, and where to post. gpus: returns the newest sample of each rank's GPU."""
        self._judge, self._floor, self._gpus = PaceJudge(limits), GpuFloor(limits.gpu_floor), gpus
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
        found = self._judge.take(t, ranks)
        if ranks and all(rank.trains and rank.steps > 0 for rank in ranks.values()):
            found += self._floor.take(self._gpus())
        else:
            self._floor.forget()
        for news in found:
            self._post(PaceChanged(t, self._attempt, news.kind.value, news.text, news.rank, news.is_over))
