"""Two ranks of gloo that train in step; rank 1 computes EXTRA times as much as rank 0. It ends once the file `end` is there."""

import os
import pathlib
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batch = torch.randn(256, 64)
work_s = 0.05 * (float(os.environ["EXTRA"]) if rank == 1 else 1.0)
while not pathlib.Path("end").exists():
    until = time.thread_time() + work_s  # of the processor, not of the clock: a busy machine changes nothing
    while time.thread_time() < until:
        loss = (model(batch) ** 2).mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
os._exit(0)
