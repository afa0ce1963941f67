"""A training that resumes: atomic saves, a save on request, and a resume that finds the newest whole one.

    supervise -- torchrun --nproc-per-node=2 examples/resumable.py --steps 1000

Kill a rank (kill -9), stop the job (SIGTERM to supervise), tear the newest checkpoint: the next attempt continues where it can. The script
also runs without supervise, under torchrun or by itself; then nobody tells it to save, and the rest works all the same.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from checkpointing import load_latest, save
from supervisor.worker import should_save


def main() -> None:
    """Train up to --steps, from the newest checkpoint in --dir."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("ckpt"))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=0.0, help="how long a step takes at least")
    args = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0

    checkpoint = load_latest(args.dir)
    if checkpoint is not None:
        model.load_state_dict(checkpoint.state["model"])
        optimizer.load_state_dict(checkpoint.state["optimizer"])
        start = checkpoint.state["step"]
        for path, why in checkpoint.passed_over:
            print(f"rank {rank} passed over {path}: {why}", flush=True)
    origin = "scratch" if checkpoint is None else Path(checkpoint.path).name
    print(f"rank {rank} pid {os.getpid()} starts at step {start} from {origin}", flush=True)

    parallel = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    for step in range(start + 1, args.steps + 1):
        torch.manual_seed(step * 1000 + rank)  # the data of this step
        loss = (parallel(torch.randn(32, 64)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(args.step_ms / 1e3)

        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        if should_save() or step % args.save_every == 0 or step == args.steps:
            save(state, args.dir, step=step, keep=3)
        if rank == 0 and step % 10 == 0:
            print(f"step {step}/{args.steps} loss {loss.item():.6f}", flush=True)
    print(f"rank {rank} done: weights {sum(p.double().sum().item() for p in model.parameters()):.12f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
