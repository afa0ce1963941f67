"""Ranks of gloo that train in step; rank 1 sleeps 0.2 s in each, the others 0.02 s, as all do once the file EVEN is there. END ends it."""

import os
import pathlib
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
even, end = (pathlib.Path(os.environ[name]) for name in ("EVEN", "END"))
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
while True:
    ends = torch.tensor(float(end.exists()))
    dist.all_reduce(ends, dist.ReduceOp.MIN)  # all ranks leave after the same step
    if ends.item():
        break
    time.sleep(0.2 if dist.get_rank() == 1 and not even.exists() else 0.02)
    model(torch.ones(1, 8)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
