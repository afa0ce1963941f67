"""Trains a little, with the data loaders that its arguments name, on the device that is named before them, and shows every figure to the last bit."""

from __future__ import annotations

import os
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from observed import modules, show

WAYS = {
    "here": {"num_workers": 0},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "forkserver": {"num_workers": 1, "multiprocessing_context": "forkserver"},
    "persistent": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
}
#: They live on: the count of steps in a heartbeat knows an optimizer by its address, and another one at the same address counts one more.
OPTIMIZERS: list[torch.optim.Optimizer] = []


class Noise(Dataset):
    """Samples that depend on the worker's own random state."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(8, generator=generator) + 0.01 * torch.rand(()) + 0.01 * random.random()
        return x, x.sum().reshape(1)


def train(way: str, device: str) -> list[str]:
    """Return the losses of two epochs."""
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.GELU(), nn.Linear(32, 1)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    OPTIMIZERS.append(optimizer)
    data = Noise()
    loader = DataLoader(
        data, batch_size=4, sampler=DistributedSampler(data, seed=5), generator=torch.Generator().manual_seed(7), **WAYS[way]
    )
    losses = []
    for _ in range(2):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
    return losses


def compiled() -> list[str]:
    """Return what a compiled function gives, and what it gives when it is differentiated."""
    torch.manual_seed(9)
    function = torch.compile(lambda x: torch.nn.functional.gelu(x @ x).sum())
    x = torch.randn(8, 8, requires_grad=True)
    y = function(x)
    y.backward()
    assert x.grad is not None
    return [y.item().hex(), x.grad.sum().item().hex()]


if __name__ == "__main__":
    unseeded = [torch.initial_seed(), torch.rand(3).tolist()]
    os.environ["MASTER_PORT"] = "0"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    device = sys.argv.pop(1) if sys.argv[1] in {"cpu", "cuda"} else "cpu"
    ways = sys.argv[1:]
    losses = {way: compiled() if way == "compile" else train(way, device) for way in ways}
    dynamo = sys.modules.get("torch._dynamo.utils")
    show(
        losses=losses,
        found_in_cache=0 if dynamo is None else dynamo.counters["aot_autograd"]["autograd_cache_hit"],
        unseeded_torch=unseeded,
        threads=[torch.get_num_threads(), torch.get_num_interop_threads()],
        config=torch.__config__.parallel_info(),
        state=torch.random.get_rng_state().sum().item(),
        numpy=np.random.random(),
        defaults=[
            str(torch.get_default_dtype()),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            str(torch.get_default_device()),
        ],
        modules=modules(),
        loaded=sorted(sys.modules),
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        tasks=sorted(
            {(os.sched_getscheduler(int(task)), os.getpriority(os.PRIO_PROCESS, int(task))) for task in os.listdir("/proc/self/task")}
        ),
        variables=dict(os.environ),
    )
    dist.destroy_process_group()
