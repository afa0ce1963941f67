"""Two gloo ranks that hang by what users do with torch's own parallel modules. The argument: `ddp`, `fsdp` or `destroy`.

ddp, fsdp: rank 1 has one batch fewer, so its validation meets a collective of the model's. destroy: rank 0 tears its process group down
while a collective of it is under way, to which rank 1 does not come.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist


def train(model: torch.nn.Module, batches: int) -> None:
    """Make a step for each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(batches):
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def validate() -> None:
    """Wait for the peer, before the model is judged."""
    dist.barrier()


def end(rank: int) -> None:
    """End in another order than the peer."""
    if rank == 1:
        time.sleep(1e6)
    dist.all_reduce(torch.ones(1), async_op=True)
    dist.destroy_process_group()


def main(kind: str) -> None:
    """Hang."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    if kind == "destroy":
        dist.barrier()
        end(rank)
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - it takes a second to import

        mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
        model = fully_shard(model, mesh=mesh)
    train(model, 5 - rank)
    validate()


if __name__ == "__main__":
    main(sys.argv[1])
