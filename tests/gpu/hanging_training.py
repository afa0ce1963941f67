"""A training on one GPU that hangs from step --at on, in its first attempt, or only looks like a hang.

spin: a kernel that runs for hours, at 100 % utilisation; the host waits for it. synchronize: the same, and the host waits by
torch.cuda.synchronize. evaluation: the host sleeps --long-s seconds in its evaluation. Prints a line per step: step, seconds. --step-ms:
how long a step takes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
from torch import distributed as dist

#: Clock cycles: hours on any GPU.
FOR_EVER = 10**14


def evaluate(seconds: float) -> None:
    """Sleep longer than any step took."""
    time.sleep(seconds)


def main() -> None:
    """Train; exit 0 at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pathology", choices=("none", "spin", "synchronize", "evaluation"), default="none")
    parser.add_argument("--at", type=int, default=40)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--long-s", type=float, default=30.0)
    asked = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    cycles = int(asked.step_ms * torch.cuda.get_device_properties(0).clock_rate) if asked.step_ms else 0
    first = os.environ.get("SUPERVISE_JOB_ATTEMPT", "1") == "1"
    for step in range(1, asked.steps + 1):
        began = time.perf_counter()
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        torch.cuda._sleep(cycles)  # noqa: SLF001  a kernel of a known length, as torch's own tests use it
        dist.all_reduce(model.weight.grad)
        if step == asked.at and first:
            if asked.pathology == "evaluation":
                evaluate(asked.long_s)
            elif asked.pathology != "none":
                torch.cuda._sleep(FOR_EVER)  # noqa: SLF001
        if asked.pathology == "spin":
            model.weight.grad.sum().item()
        else:
            torch.cuda.synchronize()
        optimizer.step()
        optimizer.zero_grad()
        sys.stdout.write(f"step {step} {time.perf_counter() - began:.6f}\n")
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
