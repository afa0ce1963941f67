"""Trains two layers in DistributedDataParallel with AdamW until somebody ends it. Each step is a line of `progress`: rank, step, ns, pid.

ns: CLOCK_MONOTONIC. --device cpu: the same over gloo.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch import distributed as dist


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    device = parser.parse_args().device
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if device == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    layers = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 1)).to(device)
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    progress = os.open("progress", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    step = 0
    while True:
        model(torch.randn(32, 256, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        step += 1
        os.write(progress, f"{rank} {step} {time.monotonic_ns()} {os.getpid()}\n".encode())
        time.sleep(0.01)


if __name__ == "__main__":
    main()
