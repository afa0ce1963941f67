"""FSDP2 with torch.distributed.checkpoint: a directory for each save, the newest whose save ended is loaded at the start."""

import argparse
from pathlib import Path

import hook
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import toy
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--asynchronous", action="store_true")
args = parser.parse_args()
hook.start()

dist.init_process_group("cpu:gloo")
savers = dist.new_group(backend="gloo")  # async_save talks in a thread: in the training's group, the two would wait for each other
rank, world = dist.get_rank(), dist.get_world_size()
model = toy.model()
mesh = init_device_mesh("cpu", (world,))
for layer in model:
    if isinstance(layer, torch.nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def state(step: int) -> dict:
    """Return all that a resume needs."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optim": moments, "step": torch.tensor(step)}


first = 0
ended = sorted(path.parent for path in Path("ckpt").glob("step-*/.metadata"))
if ended:
    content = state(0)
    dcp.load(content, checkpoint_id=ended[-1])
    set_state_dict(model, optimizer, model_state_dict=content["model"], optim_state_dict=content["optim"])
    first = int(content["step"])

saving = None
for step in range(first, toy.STEPS):
    for micro in range(args.accum):
        x, y = toy.pairs(((step * args.accum + micro) * world + rank) * args.batch_size, args.batch_size)
        hook.batch(len(x))
        loss = (model(x) - y).square().mean() / args.accum
        hook.loss(loss, step + 1).backward()
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % toy.EVERY == 0:
        place = f"ckpt/step-{step + 1:06d}"
        if saving is not None:
            saving.result()
        hook.save(step + 1)
        if args.asynchronous:
            saving = dcp.async_save(state(step + 1), checkpoint_id=place, process_group=savers)
        else:
            dcp.save(state(step + 1), checkpoint_id=place)
    hook.step(step + 1)
if saving is not None:
    saving.result()
whole = [value.full_tensor() if isinstance(value, DTensor) else value for value in model.state_dict().values()]
hook.final(toy.STEPS, (number for value in whole for number in value.flatten().tolist()))
dist.destroy_process_group()
