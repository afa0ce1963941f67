"""A gloo training in which the rank on one GPU dies as a process does whose GPU fails: it is aborted, and says nothing of why.

The GPU's own state is the fake NVML's ($FAKE_NVML_STATE): a rank looks at it before each step, and where its GPU has counted an
uncorrectable memory error it aborts, as CUDA's runtime makes torch do. Which GPU a rank has, it knows from CUDA_VISIBLE_DEVICES.

In: --batch-size, --accum (of one rank), --steps, --step-ms. Out: a line per step and rank in `log`: rank, step, micro-batch, accumulation,
global batch, UUID of the GPU, attempt.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from job_parts import append
from torch import distributed as dist


def uuid_of(local_rank: int) -> str:
    """Return the UUID of the GPU that a rank uses: of the fake's GPUs, or of those that it is shown."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return shown.split(",")[local_rank] if shown else f"GPU-00000000-0000-4000-8000-{local_rank:012d}"


def errors_of(uuid: str) -> int:
    """Return how many errors the GPU has counted."""
    rows = dict(line.split(" ", 1) for line in Path(os.environ["FAKE_NVML_STATE"]).read_text().splitlines())
    return int(rows.get(f"{int(uuid.rpartition('-')[2])}.ecc_unc_vol", "0"))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--immune", action="store_true", help="errors end nothing")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    uuid, attempt = uuid_of(int(os.environ["LOCAL_RANK"])), os.environ.get("SUPERVISE_JOB_ATTEMPT", "0")
    before = errors_of(uuid)
    for step in range(1, args.steps + 1):
        time.sleep(args.step_ms / 1e3)
        if errors_of(uuid) > before and not args.immune:
            os.abort()
        batch = torch.tensor(args.batch_size * args.accum)
        dist.all_reduce(batch)
        assert int(batch) == world * args.batch_size * args.accum
        append(Path("log"), rank, step, args.batch_size, args.accum, int(batch), uuid, attempt)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
