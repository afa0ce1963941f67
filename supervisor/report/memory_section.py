"""The page's part about memory: when it will be used up, who held it at a failure, and the share of each rank. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Cause
from supervisor.core.numeric import rank_list
from supervisor.core.units import bytes_text
from supervisor.core.watch.memory import forecast_text
from supervisor.report.layout import Fact, Tone
from supervisor.report.text import clean
from supervisor.report.wording import capital

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.core.model import Evidence, RankMemory
    from supervisor.core.training_events import MemoryForecast

MEMORY = "memory"
#: Ranks that are named one by one: the one that failed, and those that held most.
_MOST_RANKS = 3
#: The evidence of the host's memory and of the GPUs' before a failure, by source and name.
_HELD, _GPU_MEMORY = ("memory", "held"), ("heartbeat", "gpu_memory")
OF_MEMORY = frozenset({_HELD, _GPU_MEMORY})
_OF_HOST = frozenset({Cause.HOST_OOM, Cause.SHM_EXHAUSTED, Cause.DATALOADER_WORKER})


def forecast_facts(forecasts: Iterable[MemoryForecast], now: float) -> list[Fact]:
    """Return when memory will be used up, the nearest first."""
    nearest = sorted(forecasts, key=lambda forecast: forecast.out_t)
    texts = [clean(forecast_text(forecast, now)) for forecast in nearest]
    return [Fact("" if at else MEMORY, text, Tone.WARNING) for at, text in enumerate(texts)]


def held_facts(cause: Cause, rank: int | None, evidence: Iterable[Evidence]) -> list[Fact]:
    """Return who held the memory that ran out, at the last sample; nothing for another cause, or where it was never read.

    rank: the one that failed.
    """
    facts = tuple(evidence)
    if cause in _OF_HOST:
        return [Fact(MEMORY, f"at the last look: {clean(fact.text)}") for fact in facts if (fact.source, fact.name) == _HELD][:1]
    if cause is not Cause.CUDA_OOM:
        return []
    held = [fact for fact in facts if (fact.source, fact.name) == _GPU_MEMORY]
    held.sort(key=lambda fact: (fact.rank != rank, -_reserved(fact), fact.rank or 0))
    lines = [f"rank {fact.rank}: {fact.text}" for fact in held[:_MOST_RANKS]]
    rest = [fact for fact in held[_MOST_RANKS:] if fact.rank is not None]
    if rest:
        lines.append(f"{rank_list(fact.rank for fact in rest if fact.rank is not None)}: {bytes_text(_reserved(rest[0]))} reserved at most")
    return [Fact("" if at else MEMORY, line) for at, line in enumerate(lines)]


def _reserved(fact: Evidence) -> int:
    return int(dict(fact.fields).get("reserved", "0"))


def rank_facts(ranks: Sequence[RankMemory]) -> list[Fact]:
    """Return what the ranks held that held most, as the journal has it last."""
    return [Fact("" if at else MEMORY, capital(_rank_text(rank))) for at, rank in enumerate(ranks[:_MOST_RANKS])]


def _rank_text(rank: RankMemory) -> str:
    of_gpu = (
        f"{bytes_text(rank.gpu_reserved)} of its GPU's {bytes_text(rank.gpu_limit)} reserved"
        if rank.gpu_reserved and rank.gpu_limit
        else ""
    )
    peak = f"{bytes_text(rank.gpu_peak)} allocated at most" if rank.gpu_peak else ""
    resident = f"{bytes_text(rank.resident)} of the node's memory" if rank.resident else ""
    loaders = f"{bytes_text(rank.loaders)} in its loader workers and other processes" if rank.loaders else ""
    pinned = f"{bytes_text(rank.pinned)} pinned" if rank.pinned else ""
    return f"rank {rank.rank}: {', '.join(filter(None, (of_gpu, peak, resident, loaders, pinned)))}"
