"""A training that asks its GPU for --mib-per-sample times --batch-size, or hangs in a collective of NCCL.

Prints a line per step: rank, step, micro-batch, accumulation, attempt. --hang-at-step N: rank 0 leaves the all-reduce of step N out, in
its first attempt.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import timedelta

import torch
from torch import distributed as dist


def main() -> None:
    """Train five steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--mib-per-sample", type=int, default=1)
    parser.add_argument("--hang-at-step", type=int, default=0)
    asked = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", timeout=timedelta(seconds=20))
    attempt = int(os.environ["SUPERVISE_JOB_ATTEMPT"])
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 6):
        for _ in range(asked.accum):
            held = torch.empty(asked.batch_size * asked.mib_per_sample << 20, dtype=torch.uint8, device="cuda")
            model(torch.ones(asked.batch_size, 8, device="cuda")).sum().backward()
            del held
        if step == asked.hang_at_step and attempt == 1 and dist.get_rank() == 0:
            time.sleep(600)
        dist.all_reduce(model.weight.grad)
        torch.cuda.synchronize()
        optimizer.step()
        sys.stdout.write(f"trained {dist.get_rank()} {step} {asked.batch_size} {asked.accum} {attempt}\n")
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
