"""A training whose micro-batch is too large for its GPU, or whose GPU fails: what it raises is torch's own, its memory is made up.

--batch-size times --accum times the world is the global batch, which every rank writes to `--rows` with its step. Above --fits it raises
torch's OutOfMemoryError with torch's text, on all ranks or on --oom-rank. --ecc-at-step N: local rank 1 raises CUDA's ECC error at step
N, while it is given GPU "B".
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from light import light_sgd
from torch import distributed as dist

OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.20 GiB is free. Including"
    " non-PyTorch memory, this process has 22.40 GiB memory in use. Of the allocated memory 21.90 GiB is allocated by PyTorch, and"
    " 8.94 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
    "  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
ECC = (
    "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported at some other API call, so the"
    " stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--fits", type=int, default=1 << 30)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--ecc-at-step", type=int, default=0)
    parser.add_argument("--faulty", default="")
    parser.add_argument("--rows", default="log")
    parser.add_argument("--oom-rank", type=int, default=-1)
    return parser.parse_known_args()[0]  # a cluster has words for scripts that save


def main() -> None:
    asked = options()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Linear(4, 1)
    optimizer = light_sgd(torch, model.parameters())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    for step in range(1, asked.steps + 1):
        if asked.batch_size > asked.fits and asked.oom_rank in (-1, rank):
            raise torch.cuda.OutOfMemoryError(OUT_OF_MEMORY)
        if step == asked.ecc_at_step and rank == 1 and asked.faulty and asked.faulty in (visible or asked.faulty):
            raise torch.AcceleratorError(ECC) if hasattr(torch, "AcceleratorError") else RuntimeError(ECC)
        for _ in range(asked.accum):
            model(torch.ones(asked.batch_size, 4)).sum().backward()
        optimizer.step()
        dist.barrier()
        batch = asked.batch_size * asked.accum * world
        with Path(asked.rows).open("a") as log:
            log.write(f"{rank} {step} {asked.batch_size} {asked.accum} {batch} {visible or '-'} {os.environ['SUPERVISE_JOB_ATTEMPT']}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
