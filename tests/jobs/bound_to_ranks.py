"""A training over gloo whose checkpoints only as many ranks as saved them can load: its loader says so in DeepSpeed's words.

The rank on a GPU that has counted a memory error (tests/jobs/gpu_fault.py) aborts. A loader that refuses waits for the file `refuse`
first, so that a test may put a GPU back into use. `log` has a line per step and rank: rank, step, ranks, UUID of the GPU, attempt.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from gpu_fault import counts, errors_of, uuid_of
from job_parts import append

from supervisor import worker


class ZeRORuntimeException(Exception):  # noqa: N818  DeepSpeed's name
    """What DeepSpeed raises."""


def first_step(resume: Path | None, world: int) -> int:
    """Return the first step after the checkpoint, 1 without one. Raises ZeRORuntimeException for one of another number of ranks."""
    if resume is None:
        return 1
    state = torch.load(resume)
    if state["world"] != world:
        while not Path("refuse").exists():
            time.sleep(0.02)
        msg = (
            f"The checkpoint being loaded used a DP world size of {state['world']} but the current world size is {world}. Automatic "
            "adjustment of ZeRO's optimizer state partitioning with a new world size is not currently supported."
        )
        raise ZeRORuntimeException(msg)
    return int(state["step"]) + 1


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    uuid, attempt = uuid_of(int(os.environ["LOCAL_RANK"])), os.environ["SUPERVISE_JOB_ATTEMPT"]
    before = errors_of(uuid, counts())
    for step in range(first_step(args.resume, world), args.steps + 1):
        time.sleep(0.05)
        if errors_of(uuid, counts()) > before:
            os.abort()
        dist.barrier()
        worker.heartbeat(step)
        append(Path("log"), rank, step, world, uuid, attempt)
        if rank == 0 and step % 5 == 0:
            Path("ckpt").mkdir(exist_ok=True)
            torch.save({"step": step, "world": world}, f"ckpt/.{step}.tmp")
            Path(f"ckpt/.{step}.tmp").rename(f"ckpt/step-{step}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
