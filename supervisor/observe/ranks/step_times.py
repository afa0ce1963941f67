"""When a rank of this node last ended a step, and how long a step usually takes: what the nodes tell each other of their progress."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from supervisor.core.numeric import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.observe.ranks.heartbeats import RankHeartbeat

#: Intervals between two samples of which the median is the usual step.
_INTERVALS = 30


class NodeSteps:
    """The steps of one attempt on this node. Times are CLOCK_MONOTONIC ns."""

    def __init__(self) -> None:
        """Begin with no step."""
        self._last: dict[int, tuple[int, int]] = {}  # rank to its steps, and when it ended the newest
        self._step_ns: deque[float] = deque(maxlen=_INTERVALS)

    def take(self, beats: Sequence[RankHeartbeat]) -> None:
        """Take the heartbeats that were just read."""
        for beat in beats:
            if beat.last_step_ns is None:
                continue
            steps, ended_ns = self._last.get(beat.rank, (beat.steps, beat.last_step_ns))
            is_counted = bool(beat.steps)  # else the script only reports them (worker.heartbeat)
            if beat.last_step_ns > ended_ns and (beat.steps > steps or not is_counted):
                self._step_ns.append((beat.last_step_ns - ended_ns) / max(beat.steps - steps, 1))
            self._last[beat.rank] = beat.steps, beat.last_step_ns

    def since_s(self, now_ns: int) -> float | None:
        """Return the seconds since any rank here ended a step, None where none is known to have."""
        last_ns = max((ended_ns for _, ended_ns in self._last.values()), default=None)
        return None if last_ns is None else max(0, now_ns - last_ns) / 1e9

    @property
    def usual_s(self) -> float | None:
        """Return the usual seconds of a step, None where no rank ended two."""
        return median(list(self._step_ns)) / 1e9 if self._step_ns else None
