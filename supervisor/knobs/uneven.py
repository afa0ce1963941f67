"""Shares a global batch out over unequal GPUs: in exact numbers, so that the loss and its gradient are those of one big batch.

Every rank makes the same optimizer steps, each of the same number of micro-batches (the accumulation), and a rank's micro-batch goes by
the speed of its GPU. So no rank leaves out a forward pass that communicates (FSDP, buffers of DDP). `Batch.micro`, the command's
micro-batch, fits the GPU with the least memory; another one holds more in proportion. Of 2 GPUs of 80 GB and 2 of 32 GB, 2.5 times as fast:

    4 ranks, 64 samples, at most 10 on 32 GB     1 × (23 + 23 + 9 + 9) = 64
    3 ranks, a fast one is lost                  2 × (18 + 7 + 7) = 64
"""  # noqa: RUF002 (the sign)

from __future__ import annotations

import heapq
import json
from typing import TYPE_CHECKING

from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisor.knobs.batch import Batch

#: A plan with fewer, greater micro-batches is taken if its step takes at most so much longer: small products use a GPU badly.
_NEAR = 1.05


class RankGpu(Struct, frozen=True):
    """The GPU of a rank: `speed` in any unit (products a second, or a ratio), `memory` too; 0: the same as that of all others."""

    speed: float
    memory: float = 0.0


class UnevenPlan(Struct, frozen=True):
    """The micro-batch of each rank, and how many of them each adds up before an optimizer step."""

    micro: tuple[int, ...]
    accumulation: int

    @property
    def total(self) -> int:
        """The global batch."""
        return sum(self.micro) * self.accumulation

    def __str__(self) -> str:
        """Return the sum as a person would write it."""
        return f"{self.accumulation} × ({' + '.join(map(str, self.micro))}) = {self.total}"  # noqa: RUF001 (the sign)

    def text(self) -> str:
        """Return it as ranks get it: supervisor/agent/batch_plan.py reads it."""
        return json.dumps({"micro": self.micro, "accumulation": self.accumulation}, separators=(",", ":"))


def share(asked: Batch, gpus: Sequence[RankGpu], *, drift: bool = False) -> UnevenPlan | str:
    """Return the plan for one rank on each of `gpus`, whose sum is exactly the global batch, or why there is none.

    The slowest rank ends its step as early as can be. Without an exact plan: the nearest one if `drift` allows it, else a text that
    names it.
    """
    total, most = asked.total, _most(asked.micro, gpus)
    if not total:
        return "the global batch that is to be shared is not known"
    exact = [_shared(total // steps, gpus, most, steps) for steps in _divisors(total) if len(gpus) <= total // steps <= sum(most)]
    if exact:
        times = [_step_time(plan, gpus) for plan in exact]
        return next(plan for plan, time in zip(exact, times, strict=True) if time <= min(times) * _NEAR)
    nearest = _nearest(total, gpus, most)
    if drift:
        return nearest
    return f"{len(gpus)} ranks cannot share a global batch of {total} exactly; the nearest is {nearest}: --allow-batch-drift takes it"


def explained(plan: UnevenPlan, gpus: Sequence[RankGpu]) -> str:
    """Return the plan in words, with its gain over equal shares."""
    speeds = ", ".join(f"{gpu.speed:g}" for gpu in gpus)
    share = _step_time(plan, gpus) * len(gpus) * min(gpu.speed for gpu in gpus) / plan.total
    each = "1 micro-batch" if plan.accumulation == 1 else f"{plan.accumulation} micro-batches"
    return (
        f"the global batch is shared by the speeds {speeds}: {plan}; every rank makes the same optimizer steps, each of {each}, and a step"
        f" takes {share:.0%} of the time of equal shares"
    )


def _most(micro: int, gpus: Sequence[RankGpu]) -> list[int]:
    """Return the greatest micro-batch of each rank, where `micro` fits the least memory."""
    least = min(gpu.memory for gpu in gpus)
    return [int(micro * gpu.memory / least + 1e-9) if least else micro for gpu in gpus]


def _divisors(total: int) -> Iterator[int]:
    return (steps for steps in range(1, total + 1) if total % steps == 0)


def _shared(samples: int, gpus: Sequence[RankGpu], most: Sequence[int], steps: int) -> UnevenPlan:
    """Give each of `samples` to the rank that would be done with it first; a rank has 1 to its `most`."""
    speeds = sum(gpu.speed for gpu in gpus)
    micro = [max(1, min(int(samples * gpu.speed / speeds), limit)) for gpu, limit in zip(gpus, most, strict=True)]
    if sum(micro) > samples:  # many slow ranks were given their 1
        micro = [1] * len(gpus)
    heap = [((size + 1) / gpu.speed, rank) for rank, (size, gpu) in enumerate(zip(micro, gpus, strict=True)) if size < most[rank]]
    heapq.heapify(heap)
    for _ in range(samples - sum(micro)):
        _, rank = heapq.heappop(heap)
        micro[rank] += 1
        if micro[rank] < most[rank]:
            heapq.heappush(heap, ((micro[rank] + 1) / gpus[rank].speed, rank))
    return UnevenPlan(tuple(micro), steps)


def _nearest(total: int, gpus: Sequence[RankGpu], most: Sequence[int]) -> UnevenPlan:
    """Return a plan with the sum that differs least from `total`, of these the one with the fewest micro-batches."""
    sums = [(steps, min(max(round(total / steps), len(gpus)), sum(most))) for steps in range(1, max(total // len(gpus), 1) + 2)]
    steps, samples = min(sums, key=lambda row: (abs(row[0] * row[1] - total), row[0]))
    return _shared(samples, gpus, most, steps)


def _step_time(plan: UnevenPlan, gpus: Sequence[RankGpu]) -> float:
    """Return how long the slowest rank computes for one optimizer step."""
    return max(plan.accumulation * size / gpu.speed for size, gpu in zip(plan.micro, gpus, strict=True))
