"""A gloo rank that meets the others, and then waits until it is ended."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print(f"met {int(value)}", flush=True)  # noqa: T201  what the test reads
time.sleep(600)
