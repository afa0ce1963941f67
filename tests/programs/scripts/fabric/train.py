"""The form of Lightning Fabric's documentation: the loop is ours, fabric.save and fabric.load keep the state."""

import argparse
from pathlib import Path

import hook
import torch
import toy
from lightning.fabric import Fabric

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--accum", type=int, default=1)
args = parser.parse_args()
hook.start()

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
inner = toy.model()
model, optimizer = fabric.setup(inner, torch.optim.AdamW(inner.parameters(), lr=1e-2))
state = {"model": model, "optimizer": optimizer, "step": 0}
saves = sorted(Path("checkpoints").glob("step-*.ckpt"))
if saves:
    fabric.load(saves[-1], state)

while state["step"] < toy.STEPS:
    for micro in range(args.accum):
        number = (state["step"] * args.accum + micro) * fabric.world_size + fabric.global_rank
        x, y = toy.pairs(number * args.batch_size, args.batch_size)
        hook.batch(len(x))
        with fabric.no_backward_sync(model, enabled=micro < args.accum - 1):
            fabric.backward(hook.loss((model(x) - y).square().mean() / args.accum, state["step"] + 1))
    optimizer.step()
    optimizer.zero_grad()
    state["step"] += 1
    if state["step"] % toy.EVERY == 0:
        hook.save(state["step"])
        fabric.save(f"checkpoints/step-{state['step']:06d}.ckpt", state)
    hook.step(state["step"])
hook.final(state["step"], toy.weights(inner))
