"""NVIDIA/Megatron-LM#5281 (2026), a sister: attempts die seconds after they have loaded a whole checkpoint.

The first attempt is killed at step 45. Each later one dies before its first step, as --how says, until the file `mended` is there.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from training import Training


def die_of_segfault(training: Training) -> None:
    """Rank 0 crashes behind a barrier."""
    dist.barrier()
    if training.rank == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.string_at(0)
    dist.barrier()


def die_in_forward(training: Training) -> None:
    """Every rank gives its model inputs of another size."""
    training.model(torch.ones(4, 63))


def die_in_base(_training: Training) -> None:
    """Every rank loads a base model, whose file is cut."""
    Path("base.pt").write_bytes(b"PK\x03\x04 cut")
    torch.load("base.pt")


DEATHS = {"segfault": die_of_segfault, "forward": die_in_forward, "base": die_in_base}

training = Training()
training.parser.add_argument("--how", choices=DEATHS, default="segfault")
training.begin()
if training.options.resume is not None and not Path("mended").exists():
    sys.stdout.flush()
    DEATHS[training.options.how](training)
for step in range(training.first + 1, training.options.steps + 1):
    if step == 45 and training.options.resume is None and training.is_last:
        os.kill(os.getpid(), signal.SIGKILL)
    training.step()
    if step % training.options.save_every == 0 and training.rank == 0:
        training.save(Path("ckpt") / f"step-{step}.pt", step)
