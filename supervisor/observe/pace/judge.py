"""Judges the pace of an attempt from samples of its ranks, one a second. Pure, but for its memory.

The time of a rank is cut into intervals, each from one step of all ranks to a later one. An interval in which any rank was not training
counts for nothing. Of each rank it gives the *busy* share: running, waiting for a processor, blocked by a disk, asleep (time.sleep),
waiting for the workers of a DataLoader; the rest is waiting for peers, for a GPU.

    straggler  a rank that is busy nearly all the time, STRAGGLER times as much as the median of the others, in 80 % of the intervals
               of the window: the others wait for it. A rank that is only busier (rank 0 logs) while all wait for another thing is none
    drop       the median step takes DROP times as long as in the best earlier stretch, over three windows on end

Nothing is judged in the first two windows of training (compilation, caches), nor across an evaluation or a save.

Of a job of several nodes the nodes are compared (nodes.py), by what `node_pace` gives of each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum

from supervisor.config.intervals import PACE_WINDOW_S
from supervisor.core.numeric import median
from supervisor.core.units import step_time_text
from supervisor.core.values import Struct

#: The least time of an interval: a shorter one is noise.
LEAST_S = 1.0
#: A straggler is busy for this share of the time, and so many times as much as the others.
BUSY, STRAGGLER = 0.7, 1.3
#: A rank is named for its node where it is so much busier than the median of the node's others; a node is slow from there on (nodes.py).
SLOWER = 1.2
#: In so many of the intervals a rank must be the slow one, and in fewer than this it is so no more.
MOSTLY, SELDOM = 0.8, 0.4
LEAST_INTERVALS = 10
MOST_INTERVALS = 600
#: Steps of a window, and windows on end that show a pace.
LEAST_STEPS = 5
#: A step that takes so many times as long as in the best stretch is a drop: less is what data and neighbours vary by.
DROP = 2.0
STRETCH = 3
#: The share of its busy time that names a cause.
NAMED = 0.2


class PaceKind(StrEnum):
    """The slow subject."""

    STRAGGLER = "straggler"
    DROP = "drop"


class RankSample(Struct, frozen=True):
    """One rank at one time. Times are nanoseconds that only grow. last_step_ns: when its last step ended. trains: its phase is TRAIN.

    loader_ns: it waited for the workers of a DataLoader.
    """

    steps: int
    last_step_ns: int
    run_ns: int
    wait_ns: int
    is_blocked: bool
    trains: bool
    is_asleep: bool = False
    loader_ns: int = 0


class PaceNews(Struct, frozen=True):
    """A change of pace: slow, or slow no more (`is_over`). rank: the slow one, None for a drop. text: without the rank's GPU."""

    kind: PaceKind
    text: str
    rank: int | None = None
    is_over: bool = False


class NodePace(Struct, frozen=True):
    """The pace of the ranks of one node over the last window, as the other nodes need it.

    intervals: how many were counted by then, so that a new pace differs from the one before. step_s: the wall time of a step. busy: the
    share of it in which the busiest rank did not wait. rank: that rank, where it is busier than the others of its node. why: what the
    kernel shows of why it is busy, "" for nothing. stolen: the share of the processors' time that the hypervisor keeps from the node.
    """

    intervals: int
    step_s: float
    busy: float
    rank: int | None = None
    why: str = ""
    stolen: float = 0.0

    @property
    def own_s(self) -> float:
        """Seconds of a step that the node needs by itself, without the time in which it waits."""
        return self.busy * self.step_s


class _RankShare(Struct, frozen=True):
    """Shares of an interval's time. ran: it ran. waited: for a processor. blocked, asleep: by samples. loading: for a loader's workers."""

    ran: float
    waited: float
    blocked: float
    asleep: float
    loading: float = 0.0

    @property
    def busy(self) -> float:
        return min(1.0, self.ran + self.waited + self.blocked + self.asleep + self.loading)


class _Interval(Struct, frozen=True):
    """The shares of each rank. steps: made by its end by the rank that made the fewest."""

    t: float
    steps: int
    shares: Mapping[int, _RankShare]


class PaceJudge:
    """The pace of one attempt, of the ranks of this node."""

    def __init__(self, window_s: float = PACE_WINDOW_S) -> None:
        """Begin with no interval."""
        self._window_s = window_s
        self._begin: tuple[float, dict[int, RankSample]] | None = None
        self._blocked: dict[int, int] = {}
        self._asleep: dict[int, int] = {}
        self._samples = 0
        self._first_t: float | None = None
        self._intervals: deque[_Interval] = deque(maxlen=MOST_INTERVALS)
        self._counted = 0  # intervals so far
        self._slow: dict[int, str] = {}  # stragglers that were reported
        self._pace = _Pace(window_s)
        self._reasons: Mapping[int, str] = {}

    def take(self, t: float, ranks: Mapping[int, RankSample], reasons: Mapping[int, str] | None = None) -> list[PaceNews]:
        """Return what changes with the next sample.

        reasons: of each rank, after its name, the work that it does more than the others (core/step_shares.py).
        """
        self._reasons = reasons or {}
        if not ranks or not all(rank.trains and rank.steps > 0 for rank in ranks.values()):
            self._begin = None
            return []
        if self._begin is None or self._begin[1].keys() != ranks.keys():
            self._start(t, ranks)
            return []
        self._samples += 1
        for rank, sample in ranks.items():
            self._blocked[rank] += sample.is_blocked
            self._asleep[rank] += sample.is_asleep
        began_t, before = self._begin
        if any(sample.steps < before[rank].steps for rank, sample in ranks.items()):
            self._intervals.clear()
            self._start(t, ranks)  # another process in its place
            return []
        if t - began_t < LEAST_S or any(sample.steps == before[rank].steps for rank, sample in ranks.items()):
            return []
        self._first_t = t if self._first_t is None else self._first_t
        news: list[PaceNews] = []
        if t - self._first_t >= 2 * self._window_s:
            wall_ns = (t - began_t) * 1e9
            shares = {rank: self._share(rank, before[rank], sample, wall_ns) for rank, sample in ranks.items()}
            self._intervals.append(_Interval(t, min(sample.steps for sample in ranks.values()), shares))
            self._counted += 1
            while self._intervals[0].t < t - self._window_s and len(self._intervals) > LEAST_INTERVALS:
                self._intervals.popleft()
            news = [*self._stragglers(), *self._pace.take(t, *_steps(before, ranks))]
        self._start(t, ranks)
        return news

    def _start(self, t: float, ranks: Mapping[int, RankSample]) -> None:
        self._begin, self._samples = (t, dict(ranks)), 0
        self._blocked, self._asleep = dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0)

    def _share(self, rank: int, before: RankSample, now: RankSample, wall_ns: float) -> _RankShare:
        samples = max(1, self._samples)
        ran, waited = (now.run_ns - before.run_ns) / wall_ns, (now.wait_ns - before.wait_ns) / wall_ns
        loading = max(0, now.loader_ns - before.loader_ns) / wall_ns
        return _RankShare(ran, waited, self._blocked[rank] / samples, self._asleep[rank] / samples, loading)

    @property
    def _whole_window(self) -> list[_Interval]:
        """The intervals of the window, none where they are too few to judge by."""
        intervals = list(self._intervals)
        is_whole = len(intervals) >= LEAST_INTERVALS and intervals[-1].t - intervals[0].t >= 0.9 * self._window_s
        return intervals if is_whole else []

    def node_pace(self) -> NodePace | None:
        """Return the pace of this node over the last window; None where too little of it is known."""
        intervals = self._whole_window
        steps = intervals[-1].steps - intervals[0].steps if intervals else 0
        ranks = _ranks(intervals)
        if steps <= 0 or not ranks:
            return None
        busy = {rank: _busy([interval.shares[rank] for interval in intervals]) for rank in ranks}
        busiest = max(ranks, key=lambda rank: busy[rank])
        other_shares = [share for rank, share in busy.items() if rank != busiest]
        stands_out = not other_shares or busy[busiest] >= SLOWER * median(other_shares)
        why = self._why(intervals, busiest)
        step_s = (intervals[-1].t - intervals[0].t) / steps
        return NodePace(self._counted, step_s, busy[busiest], busiest if stands_out else None, why)

    def _stragglers(self) -> list[PaceNews]:
        intervals = self._whole_window
        news: list[PaceNews] = []
        for rank in _ranks(intervals):
            share = sum(self._is_slow(interval, rank) for interval in intervals) / len(intervals)
            if share >= MOSTLY and rank not in self._slow:
                ratio = median(interval.shares[rank].busy / max(_median_of_others(interval, rank), 0.01) for interval in intervals)
                why = self._why(intervals, rank)
                text = f"rank {rank} {times_text(ratio)}, and the others wait for it{f': it {why}' if why else ''}"
                self._slow[rank] = text
                news.append(PaceNews(PaceKind.STRAGGLER, text, rank))
            elif share < SELDOM and self._slow.pop(rank, None) is not None:
                news.append(PaceNews(PaceKind.STRAGGLER, f"rank {rank} is as fast as the others again", rank, is_over=True))
        return news

    def _why(self, intervals: Sequence[_Interval], rank: int) -> str:
        """Return why a rank is busy, after "it", by the kernel and by the part of a step of which it has more; "" where nothing shows."""
        return ", and ".join(filter(None, (_cause([interval.shares[rank] for interval in intervals]), self._reasons.get(rank, ""))))

    def _is_slow(self, interval: _Interval, rank: int) -> bool:
        busy = interval.shares[rank].busy
        return len(interval.shares) > 1 and busy >= BUSY and busy >= STRAGGLER * _median_of_others(interval, rank)


class _Pace:
    """The median time of a step in each window, and the best stretch of them so far."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._from_t: float | None = None
        self._steps = 0
        self._times: list[float] = []
        self._last: deque[float] = deque(maxlen=STRETCH)
        self._best = 0.0
        self._is_slow = False

    def take(self, t: float, steps: int, step_s: float) -> list[PaceNews]:
        """Return what changes with the next interval of so many steps of this time each."""
        self._from_t = t if self._from_t is None else self._from_t
        self._steps += steps
        self._times.append(step_s)
        if t - self._from_t < self._window_s or self._steps < LEAST_STEPS:
            return []
        self._last.append(median(self._times))
        self._from_t, self._steps, self._times = t, 0, []
        if len(self._last) < STRETCH:
            return []
        slowest, fastest = max(self._last), min(self._last)
        self._best = min(self._best, slowest) if self._best else slowest
        if not self._is_slow and fastest >= DROP * self._best:
            self._is_slow = True
            longer = f"{fastest / self._best:.1f} times as long as it did ({step_time_text(self._best)})"
            return [PaceNews(PaceKind.DROP, f"a step takes {step_time_text(median(self._last))}, {longer}")]
        if self._is_slow and self._last[-1] < (1 + DROP) / 2 * self._best:
            self._is_slow = False
            return [PaceNews(PaceKind.DROP, f"a step takes {step_time_text(self._last[-1])} again", is_over=True)]
        return []


def _steps(before: Mapping[int, RankSample], now: Mapping[int, RankSample]) -> tuple[int, float]:
    """Return the steps between two samples and the seconds of each, of the rank that made the fewest."""
    rank = min(now, key=lambda rank: now[rank].steps - before[rank].steps)
    steps = now[rank].steps - before[rank].steps
    return steps, (now[rank].last_step_ns - before[rank].last_step_ns) / 1e9 / steps


def _median_of_others(interval: _Interval, rank: int) -> float:
    return median([share.busy for peer, share in interval.shares.items() if peer != rank] or [0.0])


def _ranks(intervals: Sequence[_Interval]) -> list[int]:
    """Return the ranks of all these intervals."""
    return sorted(set.intersection(*(set(interval.shares) for interval in intervals))) if intervals else []


def _busy(shares: Sequence[_RankShare]) -> float:
    """Return the busy share over several intervals: the median of what the kernel counts, and the mean of the samples."""
    counted, sampled = median(share.ran + share.waited for share in shares), sum(share.blocked + share.asleep for share in shares)
    return min(1.0, counted + (sampled + sum(share.loading for share in shares)) / len(shares))


def times_text(ratio: float) -> str:
    """Return in words how much longer than the others somebody computes."""
    return f"computes {ratio:.1f} times as long per step as the others" if ratio < 10 else "alone computes"  # noqa: PLR2004 (the others hardly do)


def _cause(shares: Sequence[_RankShare]) -> str:
    """Return what the kernel shows of why it is slow, "" for nothing."""
    waited = median(share.waited for share in shares)
    blocked, asleep = (sum(parts) / len(shares) for parts in zip(*((share.blocked, share.asleep) for share in shares), strict=True))
    if asleep >= NAMED and asleep >= max(waited, blocked):
        return f"sleeps {100 * asleep:.0f} % of the time (time.sleep: the script's own, or that of a library that tries something again)"
    if blocked >= NAMED and blocked >= waited:
        return f"waits for a disk or a network file system {100 * blocked:.0f} % of the time"
    if waited >= NAMED:
        return f"waits for a processor {100 * waited:.0f} % of the time, because others use them"
    return ""
