"""Reads where the steps of the ranks went, over the last minutes: by what their heartbeats count of each part."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from supervisor.core.step_shares import RankShares, StepShares, compared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.observe.ranks.heartbeats import PartTimes, RankHeartbeat

#: The shares are those of so long, read so often.
WINDOW_S, READ_S = 120.0, 10.0
#: A rank of which less is known has no shares: a few samples show nothing.
LEAST_S = 5.0


class StepPartsWatch:
    """The parts of the steps of one attempt on this node."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._read: deque[tuple[float, dict[int, tuple[int, PartTimes]]]] = deque()  # each rank's pid and counts, the oldest first
        self.ranks: Mapping[int, RankShares] = {}  # of the window; replaced as a whole, so any thread may read it

    def take(self, beats: Sequence[RankHeartbeat], t: float) -> None:
        """Take the heartbeats that were read at `t`, where that is due."""
        if self._read and 0 <= t - self._read[-1][0] < READ_S:
            return
        self._read.append((t, {beat.rank: (beat.pid, beat.parts) for beat in beats if beat.parts is not None}))
        while len(self._read) > 2 and t - self._read[1][0] >= WINDOW_S:  # noqa: PLR2004 (a distance)
            self._read.popleft()
        shares = {}
        for rank, (pid, parts) in self._read[-1][1].items():
            earlier_pid, earlier = self._read[0][1].get(rank, (0, None))
            row = shares_of(parts, earlier if earlier_pid == pid else None)
            if row is not None:
                shares[rank] = row
        self.ranks = shares

    @property
    def shares(self) -> StepShares | None:
        """Where the steps go; None: not known. From any thread."""
        return compared(self.ranks)


def shares_of(parts: PartTimes, earlier: PartTimes | None = None) -> RankShares | None:
    """Return the shares of a rank since an earlier reading, or since its training began; None where too little is known."""
    before = (0,) * len(parts.parts_ns) if earlier is None else earlier.parts_ns
    took = [now - earlier_ns for now, earlier_ns in zip(parts.parts_ns, before, strict=True)]
    whole = sum(took)
    if whole < LEAST_S * 1e9:
        return None
    disk_ns = parts.disk_ns - (0 if earlier is None else earlier.disk_ns)
    return RankShares(tuple(100 * ns / whole for ns in took), 100 * disk_ns / whole, parts.place)
