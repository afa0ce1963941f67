"""One rank of a gloo group that takes its share of each global batch: sharing.py PLACE HOW, with the variables of torchrun and a plan.

HOW: `ddp`, or `plain` for an all-reduce by hand, which imports less.
It writes to PLACE/rank-<n>.json how far its weights are from those of one process that has the whole batch.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from checkpointing import UnevenSampler
from supervisor import worker

EPOCHS = 3
RATE = 0.1


def model_of_seed() -> nn.Module:
    """Return the same model on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def descend(model: nn.Module, *, by_hand: bool) -> None:
    """Make an optimizer step; by_hand: with the mean of the ranks' gradients, as DDP makes it."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        if by_hand:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        parameter.data -= RATE * parameter.grad
        parameter.grad = None


def trained(model: nn.Module, data: TensorDataset, plan: worker.BatchPlan) -> tuple[nn.Module, int]:
    """Train by a plan; return the model and the number of optimizer steps."""
    steps, micro_batches = 0, 0
    sampler = UnevenSampler(len(data), plan, seed=3)
    for _ in range(EPOCHS):
        for inputs, targets in DataLoader(data, batch_size=plan.micro_batch, sampler=sampler):
            micro_batches += 1
            is_last = micro_batches % plan.accumulation == 0
            if isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = is_last
            (nn.functional.mse_loss(model(inputs), targets) * plan.weight).backward()
            if is_last:
                descend(model, by_hand=plan.samples < plan.global_batch and not isinstance(model, DistributedDataParallel))
                steps += 1
    return model, steps


def difference(first: nn.Module, second: nn.Module) -> float:
    """Return by how much two models differ at most."""
    return max(float((a - b).detach().abs().max()) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def main() -> None:
    """Train both ways, and write down the greatest difference."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    plan = worker.batch_plan()
    assert plan is not None
    torch.manual_seed(7)
    data = TensorDataset(torch.randn(150, 8), torch.randn(150, 1))
    parallel, steps = trained(DistributedDataParallel(model_of_seed()) if sys.argv[2] == "ddp" else model_of_seed(), data, plan)
    whole = worker.BatchPlan(micro_batch=plan.global_batch, accumulation=1, weight=1.0, offset=0, global_batch=plan.global_batch)
    reference, reference_steps = trained(model_of_seed(), data, whole)
    away, moved = difference(parallel, reference), difference(reference, model_of_seed())
    seen = {"steps": [steps, reference_steps], "away": away, "moved": moved}
    (Path(sys.argv[1]) / f"rank-{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
