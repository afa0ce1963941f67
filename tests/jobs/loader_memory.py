"""A training over gloo whose loader workers need more memory than there is: each one holds --hold-mib, or is killed above --fits workers.

Every rank appends to `workers` how many loader workers it trained with, and in which attempt, once it has made all its steps.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from job_parts import append
from light import light_sgd
from torch import distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator


class Samples(torch.utils.data.IterableDataset[torch.Tensor]):
    """Samples without end, for which a worker holds memory of its own."""

    def __init__(self, hold_mib: int, fits: int) -> None:
        self.hold_mib, self.fits, self.held = hold_mib, fits, bytearray()

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield samples for ever, in a worker that holds its memory or is killed."""
        worker = torch.utils.data.get_worker_info()
        self.held = bytearray(os.urandom(1 << 20)) * self.hold_mib  # written to, so that the kernel must find it
        if worker is not None and worker.num_workers > self.fits and worker.id == 0:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does it
        while True:
            yield torch.ones(4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--hold-mib", type=int, default=0)
    parser.add_argument("--fits", type=int, default=1 << 30)
    asked = parser.parse_args()
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)
    optimizer = light_sgd(torch, model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()  # the memory runs out in the training, and not before its first step
    loader = torch.utils.data.DataLoader(Samples(asked.hold_mib, asked.fits), batch_size=2, num_workers=asked.workers)
    for step, samples in enumerate(loader):
        model(samples).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        if step == 4 * max(asked.workers, 1):  # each worker's first batch has come
            break
    append(Path("workers"), dist.get_rank(), asked.workers, os.environ["SUPERVISE_JOB_ATTEMPT"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
