"""A gloo rank: in the first FAILS attempts rank 1 exits 42 in the middle; SKEW_S starts rank 0 late. Says what the all-reduce gave."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
if rank == 0:
    time.sleep(float(os.environ.get("SKEW_S", "0")))
dist.init_process_group("gloo", timeout=timedelta(seconds=40))
value = torch.ones(1)
dist.all_reduce(value)
if attempt <= int(os.environ.get("FAILS", "1")):
    if rank == 1:
        os._exit(42)
    dist.all_reduce(value)  # fails or is ended
dist.all_reduce(value)
print(f"rank {rank} attempt {attempt}: {float(value)}", flush=True)  # noqa: T201  what the test reads
dist.destroy_process_group()
