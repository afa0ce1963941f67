"""Rank 0 saves (the argument: seconds) for longer than its peer waits at a barrier: 3 s, or as long as the supervisor says."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch.distributed as dist

from supervisor import worker

# torch's own default, made short: the instrumentation does the same to the true one
timeout_s = float(os.environ.get("SUPERVISE_JOB_GROUP_TIMEOUT_S", "3"))
dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
worker.heartbeat(1)
dist.barrier()
worker.heartbeat(2)
if dist.get_rank() == 0:
    with worker.phase("checkpoint", at_most_s=60):
        time.sleep(float(sys.argv[1]))
dist.barrier()
sys.stdout.write(f"done after a timeout of {timeout_s}\n")
