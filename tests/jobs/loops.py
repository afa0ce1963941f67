"""Two ranks that loop without an optimizer of torch's: collectives alone, or backward passes and a rule of their own.

Rank 1 stops once the file `halt` is there. `--pause-s`: how long each rank does something else in every 40th round.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    """Loop until the file `end` is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["collectives", "backward"])
    parser.add_argument("--pause-s", type=float, default=0.0)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with Path("pids").open("a") as pids:
        pids.write(f"{rank} {os.getpid()}\n")
    weight, over = torch.zeros(4, requires_grad=True), torch.zeros(1)
    number = 0
    while not over:
        number += 1
        if options.kind == "backward":
            ((weight - 1) ** 2).sum().backward()
            dist.all_reduce(weight.grad)
            with torch.no_grad():
                weight -= 0.01 * weight.grad
            weight.grad = None
        if rank == 1 and Path("halt").exists():
            time.sleep(1e6)  # the stop
        if options.pause_s and number % 40 == 0:
            ends = time.monotonic() + options.pause_s
            while time.monotonic() < ends:
                sum(range(1000))
        over.fill_(float(Path("end").exists()))
        dist.all_reduce(over)
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
