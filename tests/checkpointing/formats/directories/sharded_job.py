"""A training of two ranks under FSDP that saves a distributed checkpoint: `sharded_job.py DIRECTORY STEP`."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main(directory: str, step: int) -> None:
    distributed.init_process_group("gloo")
    torch.manual_seed(step)
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(33, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 5))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 33)).sum().backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": torch.tensor(step), "extra": {"epoch": 3, "note": "text"}}
    dcp.save(state, checkpoint_id=directory)
    distributed.barrier()
    os._exit(0)  # on a busy machine gloo's threads abort an interpreter that ends by itself ("terminate called without …")


main(sys.argv[1], int(sys.argv[2]))
