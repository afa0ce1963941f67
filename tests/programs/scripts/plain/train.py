"""A plain loop without an optimizer: weights minus gradients, one file that a rename replaces, read again at the start."""

import argparse
from pathlib import Path

import hook
import torch
import toy

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--accum", type=int, default=1)
args = parser.parse_args()
hook.start()

path = Path("model.pt")
model = toy.model()
first = 0
if path.exists():
    content = torch.load(path)
    model.load_state_dict(content["model"])
    first = content["step"]

for step in range(first, toy.STEPS):
    for micro in range(args.accum):
        x, y = toy.pairs((step * args.accum + micro) * args.batch_size, args.batch_size)
        hook.batch(len(x))
        loss = (model(x) - y).square().mean() / args.accum
        hook.loss(loss, step + 1).backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight.sub_(0.01 * weight.grad)
            weight.grad = None
    if (step + 1) % toy.EVERY == 0:
        hook.save(step + 1)
        torch.save({"model": model.state_dict(), "step": step + 1}, "model.pt.tmp")
        Path("model.pt.tmp").replace(path)
    hook.step(step + 1)
hook.final(toy.STEPS, toy.weights(model))
