"""Samples the memory of this node's ranks every 10 s, and posts MemoryForecast where one of its limits will be reached. One per attempt.

All is read from outside of the ranks, but for the memory of torch's allocator, which is in their heartbeats. The limits are the real
ones: the memory that the machine has available, that of each control group above us, and each rank's GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.core.model import Evidence, Phase, RankMemory
from supervisor.core.training_events import MemoryForecast
from supervisor.core.units import bytes_text, span_text
from supervisor.core.values import Struct, replace
from supervisor.observe.host import memory_room, resources
from supervisor.observe.memory.forecast import MemorySample, MemoryTrend
from supervisor.observe.memory.processes import LoaderMemory, resident

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from supervisor.core.events import Event
    from supervisor.observe.host.memory_room import MemoryRoom
    from supervisor.observe.memory.forecast import TrendForecast
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

SAMPLE_S: Final = 10.0
#: A forecast is looked for at each sixth sample, and is over once three times in a row there is none.
_JUDGE_SAMPLES, _MISSES = 6, 3
#: A forecast is reported again when its time moved by so much of the rest, and not before so many looks for one.
_MOVED, _REPEAT_LOOKS = 0.2, 10
#: A process is named from this share of all growth on, and so many of them at most; below half of it in sum, it is not this job that grew.
_LEAST_PART, _MOST_NAMED, _MOST_GROWTH = 0.2, 3, 0.5
HOST: Final = "host"
#: The time over which the growth of a rank before a failure is reported.
_BEFORE_S: Final = 1200.0


class _PostedForecast(Struct):
    """The newest forecast of a subject that was posted, how often it was looked for since, and how often in a row none was found."""

    event: MemoryForecast
    looks: int = 0
    misses: int = 0


class MemoryWatch:
    """The memory of one attempt. Called from one thread at a time; `newest` and `evidence` from any.

    processes: returns the pids below each rank. rooms: returns the limits of the host's memory and the free part. every_s: between samples.
    """

    def __init__(
        self,
        attempt: int,
        post: Callable[[Event], None],
        processes: Callable[[], Mapping[int, Sequence[int]]],
        *,
        rooms: Callable[[], Sequence[MemoryRoom]] = memory_room.rooms,
        every_s: float = SAMPLE_S,
    ) -> None:
        self._attempt, self._post, self._processes, self._rooms, self._every_s = attempt, post, processes, rooms, every_s
        self._sampled_t: float | None = None
        self._loaders = LoaderMemory()
        self._trends: dict[str, MemoryTrend] = {}
        self._limits: dict[str, tuple[float, float]] = {}  # of each subject: the limit, and the used part, in bytes
        self._posted: dict[str, _PostedForecast] = {}
        self._looks = 0  # samples that were taken in training
        self._held: dict[str, int] = {}  # bytes of the host's memory, by who holds them
        self.newest: tuple[RankMemory, ...] = ()  # of each rank, the one that holds most first

    def sample(self, beats: Sequence[RankHeartbeat], t: float) -> None:
        """Take the heartbeats that were read at `t`."""
        if not beats or (self._sampled_t is not None and 0 <= t - self._sampled_t < 0.9 * self._every_s):
            return
        self._sampled_t = t
        below = self._processes()
        sizes = self._loaders.read([pid for pids in below.values() for pid in pids], t)
        held, ranks = {}, []
        for beat in beats:
            process, children = resident(beat.pid), [sizes[pid] for pid in below.get(beat.rank, ()) if pid in sizes]
            if process is not None:
                held[f"rank {beat.rank}"] = process[1]
            if children:
                held[f"{'loader workers' if beat.loader else 'processes'} of rank {beat.rank}"] = sum(children)
            ranks.append(_rank_memory(beat, None if process is None else process[0], sum(children) if children else None))
        if (shm := resources.shared_memory_used()) is not None:
            held[resources.SHM] = shm
        self._held = held
        self.newest = tuple(sorted(ranks, key=lambda rank: (-rank.gpu_share, -(rank.resident or 0) - (rank.loaders or 0), rank.rank)))
        if all(beat.has_trained and beat.phase in {Phase.TRAIN, Phase.UNKNOWN} for beat in beats):
            self._take(t, beats)

    def evidence(self) -> tuple[Evidence, ...]:
        """Return who held the host's memory at the last sample, and who had grown before; () where it was never read."""
        parts = sorted(self._held.items(), key=lambda row: (-row[1], row[0]))[: _MOST_NAMED + 1]
        texts = []
        for name, size in parts:
            trend = self._trends.get(name, MemoryTrend())
            grown, within_s = trend.grown(_BEFORE_S), min(_BEFORE_S, trend.known_s)
            more = f" ({bytes_text(grown)} more in {span_text(within_s)})" if grown >= _LEAST_PART * size > 0 else ""
            texts.append(f"{name} {bytes_text(size)}{more}")
        return (Evidence("memory", "held", ", ".join(texts)),) if texts else ()

    def _take(self, t: float, beats: Sequence[RankHeartbeat]) -> None:
        """Take a sample of each amount of memory in training, and look for forecasts where that is due."""
        steps = [beat.step for beat in beats if beat.step is not None]
        step = min(steps) if len(steps) == len(beats) else None
        rooms, gpus = {room.whose: room for room in self._rooms()}, {}
        used = {**self._held, **{whose: room.total - room.free for whose, room in rooms.items()}}
        for beat in beats:
            if beat.gpu_memory is not None:
                gpus[f"gpu {beat.rank}"] = beat.gpu_memory
                used[f"gpu {beat.rank}"] = beat.gpu_memory.allocated
        for name, count in used.items():
            self._trends.setdefault(name, MemoryTrend()).take(MemorySample(t, count, step))
        self._looks += 1
        if self._looks % _JUDGE_SAMPLES:
            return
        hosts = [(forecast, room) for room in rooms.values() if (forecast := self._trends[room.whose].forecast(room.total)) is not None]
        forecast, room = min(hosts, key=lambda row: row[0].left_s, default=(None, None))
        self._tell(t, HOST, forecast, "" if forecast is None or room is None else self._host_text(forecast, room), self._culprit(forecast))
        for subject, memory in gpus.items():
            # a step needs more at its height than at its end, where it is sampled
            forecast = self._trends[subject].forecast(memory.limit - max(0, memory.peak - memory.allocated))
            rank = int(subject.removeprefix("gpu "))
            amounts = f"{bytes_text(memory.peak)} of {bytes_text(memory.limit)}"
            text = "" if forecast is None else f"rank {rank} needs {amounts} at most in a step, {_rate_text(forecast)}"
            self._tell(t, subject, forecast, text, rank)

    def _tell(self, t: float, subject: str, forecast: TrendForecast | None, text: str, rank: int | None) -> None:
        """Post a forecast that is new, that moved, or that is over."""
        posted = self._posted.get(subject)
        if forecast is None:
            if posted is not None and posted.misses + 1 < _MISSES:
                self._posted[subject] = replace(posted, misses=posted.misses + 1)
            elif posted is not None:
                del self._posted[subject]
                over = "the memory does not grow any more as it did"
                self._post(MemoryForecast(t, self._attempt, subject, over, rank=posted.event.rank, is_over=True))
            return
        event = MemoryForecast(t, self._attempt, subject, text, t + forecast.left_s, forecast.doubt_s, forecast.step, rank)
        if posted is not None:
            has_moved = abs(event.out_t - posted.event.out_t) > _MOVED * forecast.left_s and posted.looks + 1 >= _REPEAT_LOOKS
            self._posted[subject] = _PostedForecast(event) if has_moved else replace(posted, looks=posted.looks + 1, misses=0)
            if not has_moved:
                return
        else:
            self._posted[subject] = _PostedForecast(event)
        self._post(event if posted is None else replace(event, is_repeat=True))

    def _growth(self, forecast: TrendForecast) -> list[tuple[str, float]]:
        """Return who holds the host's memory and by how much each grew in the window of a forecast, the one that grew most first."""
        grown = ((name, self._trends[name].grown(forecast.window_s)) for name in self._held if name in self._trends)
        return sorted(grown, key=lambda row: -row[1])

    def _culprit(self, forecast: TrendForecast | None) -> int | None:
        """Return the rank that grew most, by itself or by its loader workers; None: it was none of them."""
        name, grown = (self._growth(forecast) or [("", 0.0)])[0] if forecast is not None else ("", 0.0)
        if forecast is None or "rank " not in name or grown < _MOST_GROWTH * forecast.growth * forecast.window_s:
            return None
        return int(name.rpartition(" ")[2])

    def _host_text(self, forecast: TrendForecast, room: MemoryRoom) -> str:
        whole = forecast.growth * forecast.window_s
        growth = self._growth(forecast)
        named = [f"{name} grew by {bytes_text(grown)}" for name, grown in growth[:_MOST_NAMED] if grown >= _LEAST_PART * whole]
        if sum(grown for _, grown in growth if grown > 0) < _MOST_GROWTH * whole:
            named.append("most of what grew is held by no rank of this job")
        whose = room.whose if room.whose == memory_room.MACHINE else f"the limit of {room.whose}"
        amounts = f"{bytes_text(room.total - room.free)} of {bytes_text(room.total)}"
        return f"{whose}: {amounts} used, {_rate_text(forecast)}; in {span_text(forecast.window_s)} {', '.join(named)}"


def _rate_text(forecast: TrendForecast) -> str:
    return f"{bytes_text(60 * forecast.growth)} more each minute"


def _rank_memory(beat: RankHeartbeat, process: int | None, loaders: int | None) -> RankMemory:
    gpu = beat.gpu_memory
    memory = RankMemory(beat.rank, process, loaders, pinned=beat.pinned)
    if gpu is None:
        return memory
    return replace(memory, gpu_allocated=gpu.allocated, gpu_reserved=gpu.reserved, gpu_peak=gpu.peak, gpu_limit=gpu.limit)
