"""A rank's part of a plan that shares the global batch out over unequal GPUs. It runs in the rank: the standard library alone.

supervisor/knobs/uneven.py makes the plan.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The plan of all ranks: {"micro": [23, 23, 9, 9], "accumulation": 1}.
VARIABLE = "SUPERVISE_JOB_BATCH_PLAN"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A rank's share of the global batch.

    With it the mean over the ranks, which DDP makes of gradients, is the gradient of one batch of `global_batch` samples:

        (loss_of_micro_batch.mean() * plan.weight).backward()      plan.accumulation times before an optimizer step
    """

    micro_batch: int  # samples of this rank in one forward pass
    accumulation: int  # micro-batches before an optimizer step; the same on all ranks
    weight: float  # by which the mean loss of each micro-batch is multiplied. With equal GPUs it is 1 / accumulation
    offset: int  # where this rank's share begins in the global batch
    global_batch: int  # samples of all ranks in one optimizer step

    @property
    def samples(self) -> int:
        """Samples of this rank in one optimizer step."""
        return self.micro_batch * self.accumulation


def of_rank(environ: Mapping[str, str]) -> BatchPlan | None:
    """Return the part of the rank with these variables; None without a plan. Raises ValueError for a plan of another number of ranks."""
    text = environ.get(VARIABLE)
    if not text:
        return None
    plan = json.loads(text)
    micro, accumulation = plan["micro"], plan["accumulation"]
    rank, world = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    if len(micro) != world:
        raise ValueError(f"the batch plan is for {len(micro)} ranks, and there are {world}: {VARIABLE}={text}")
    total = sum(micro) * accumulation
    return BatchPlan(
        micro_batch=micro[rank],
        accumulation=accumulation,
        weight=world * micro[rank] / total,
        offset=sum(micro[:rank]) * accumulation,
        global_batch=total,
    )
