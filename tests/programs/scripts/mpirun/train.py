"""A training over gloo whose ranks mpirun starts: rank and size come from Open MPI's variables."""

import argparse
import os
from pathlib import Path

import hook
import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--accum", type=int, default=1)
args = parser.parse_args()
hook.start()

rank, world = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=world)
inner = toy.model()
optimizer = torch.optim.SGD(inner.parameters(), lr=1e-2)
first = 0
saves = sorted(Path("ckpt").glob("step-*.pt"))
if saves:
    content = torch.load(saves[-1])
    inner.load_state_dict(content["model"])
    first = content["step"]
model = DistributedDataParallel(inner)

for step in range(first, toy.STEPS):
    for micro in range(args.accum):
        x, y = toy.pairs(((step * args.accum + micro) * world + rank) * args.batch_size, args.batch_size)
        hook.batch(len(x))
        hook.loss((model(x) - y).square().mean() / args.accum, step + 1).backward()
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % toy.EVERY == 0 and rank == 0:
        Path("ckpt").mkdir(exist_ok=True)
        hook.save(step + 1)
        torch.save({"model": inner.state_dict(), "step": step + 1}, f"ckpt/step-{step + 1:06d}.pt")
    hook.step(step + 1)
hook.final(toy.STEPS, toy.weights(inner))
dist.destroy_process_group()
