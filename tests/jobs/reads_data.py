"""A training that opens its data before its first step, and trains until the file `enough` is there: of tests/e2e/test_start_again.py."""

import argparse
import os
import time
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
given = parser.parse_args()
data = [float(line) for line in Path("data.txt").read_text(encoding="utf-8").split()]
weights = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.Adam([weights], lr=0.01)
step = 0
if given.resume:
    saved = torch.load(given.resume, weights_only=True)
    step = saved["step"]
    optimizer.load_state_dict(saved["optimizer"])
Path("ckpt").mkdir(exist_ok=True)
Path("pid").write_text(str(os.getpid()), encoding="utf-8")
while not Path("enough").exists():
    optimizer.zero_grad()
    ((weights - data[step % len(data)]) ** 2).sum().backward()
    optimizer.step()
    step += 1
    time.sleep(0.05)
    if step % 10 == 0:
        torch.save({"step": step, "optimizer": optimizer.state_dict()}, "ckpt/new")
        Path("ckpt/new").replace(f"ckpt/step-{step:06d}.pt")
