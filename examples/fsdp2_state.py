"""FSDP2 with checkpoints in shards: killed anywhere, it continues from the newest whole one, also on another number of GPUs.

    supervise -- torchrun --nproc-per-node=2 examples/fsdp2_state.py --steps 1000

Weights, optimizer and the random generators of each rank come back, so that the resumed run ends with the same weights.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from checkpointing import apply, load_latest, save, state
from supervisor.worker import should_save


def main() -> None:
    """Train up to --steps, from the newest checkpoint in --dir."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default="ckpt")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=0.0, help="how long a step takes at least")
    args = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group()
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1)) for _ in range(4))).to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())  # after the sharding, which replaces the parameters
    torch.manual_seed(rank)  # the data of this rank

    start = 0
    checkpoint = load_latest(args.dir, into={**state(model, optimizer), "step": 0})
    if checkpoint is not None:
        apply(checkpoint.state, model, optimizer)
        start = checkpoint.state["step"]
    print(f"rank {rank} pid {os.getpid()} starts at step {start}", flush=True)

    for step in range(start + 1, args.steps + 1):
        loss = (model(torch.randn(32, 64, device=device)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(args.step_ms / 1e3)
        if should_save() or step % args.save_every == 0 or step == args.steps:
            save({**state(model, optimizer), "step": step}, args.dir, step=step, sharded=True, keep=3)
        if rank == 0 and step % 10 == 0:
            print(f"step {step}/{args.steps} loss {loss.item():.6f}", flush=True)

    total = sum(parameter.full_tensor().double().sum().item() for parameter in model.parameters())
    print(f"rank {rank} done: weights {total:.12f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
