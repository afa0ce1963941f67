"""A gloo training of any number of ranks that saves when it is asked to, and continues training; each rank records the step.

`told` has a line per rank and save (rank, step), `started` one per rank and start (rank, step), and
ckpt/step-*.pt, written by rank 0 under a temporary name and renamed a moment later.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from light import light_sgd

from supervisor import worker


def note(name: str, *words: object) -> None:
    """Append one line in one write."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
    os.close(descriptor)


def main() -> None:
    """Train up to --steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--save-every", type=int, default=0, help="steps, also without being asked; 0: never")
    parser.add_argument("--save-ms", type=float, default=300.0)
    parser.add_argument("--never-ask", action="store_true")
    parser.add_argument("--resume", type=Path)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.Linear(4, 4)
    optimizer = light_sgd(torch, model.parameters())
    step = torch.load(args.resume, weights_only=True)["step"] if args.resume else 0
    note("started", rank, step)
    while step < args.steps:
        time.sleep(args.step_ms / 1e3 * (1 + rank))  # ranks of different speed
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        dist.all_reduce(loss)
        optimizer.step()
        step += 1
        worker.heartbeat(step)
        note("steps", rank, step)
        is_asked = not args.never_ask and worker.should_save()
        if is_asked:
            note("told", rank, step)
        if rank == 0 and (is_asked or (args.save_every and step % args.save_every == 0)):
            path = Path("ckpt", f"step-{step:08d}.pt")
            path.parent.mkdir(exist_ok=True)
            torch.save({"step": step, "model": model.state_dict()}, path.with_suffix(".tmp"))
            time.sleep(args.save_ms / 1e3)  # a checkpoint is made when it has its name, not when torch.save is over
            path.with_suffix(".tmp").rename(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
