"""Ranks that do not do the same thing: `unused` has a layer that no loss uses, `differ` calls two collectives, `sizes` one."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    """Two layers that the loss uses, and one that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.extra = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 2)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the head's output."""
        return self.head(self.body(batch))


def train() -> None:
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def differ() -> None:
    value = torch.ones(4)
    dist.all_reduce(value)
    if dist.get_rank() == 0:
        dist.all_reduce(value)  # of rank 0
    else:
        dist.broadcast(value, 0)  # of rank 1
    dist.barrier()


def sizes() -> None:
    value = torch.ones(4 if dist.get_rank() == 0 else 8)
    dist.all_reduce(value)  # of both
    dist.barrier()


dist.init_process_group("gloo")
{"sizes": sizes, "unused": train, "differ": differ}[sys.argv[1]]()
