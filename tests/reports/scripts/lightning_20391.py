"""Lightning-AI/pytorch-lightning#20391 (2024): with --ntasks=1 --ntasks-per-node=2 the world is taken as 2; one starts, and waits for ever.

One process that takes its world size from SLURM_NTASKS_PER_NODE, as Lightning did.
"""

from __future__ import annotations

import os

import torch.distributed as dist


def main() -> None:
    """Wait for the other rank."""
    size = int(os.environ["SLURM_NTASKS_PER_NODE"])
    dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=int(os.environ["SLURM_PROCID"]), world_size=size)


main()
