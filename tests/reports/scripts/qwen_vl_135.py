"""2U1/Qwen-VL-Series-Finetune#135 (2025): main memory runs out in the save, which holds the state a second time; there is no loader.

`--by KILL` or `raise`: how the rank ends; the kernel kills it, or an allocation fails. `--workers N`: with a loader, after all.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from training import Training


class Doubling:
    """A part of the state whose copy needs more memory than there is."""

    def __init__(self, by: str) -> None:
        self.by = by

    def __reduce__(self) -> tuple[object, ...]:
        """Fail while it is pickled: within torch.save."""
        if self.by == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError


def main() -> None:
    training = Training()
    training.parser.add_argument("--by", default="raise")
    training.parser.add_argument("--workers", type=int, default=0)
    training.begin()
    loader = torch.utils.data.DataLoader(range(1 << 20), num_workers=training.options.workers)
    batches = iter(loader)
    for step in range(training.first + 1, training.options.steps + 1):
        next(batches)
        training.step()
        if step == training.options.save_every and training.rank == 0:
            torch.save({"state": Doubling(training.options.by)}, Path("ckpt") / "step-20.tmp")


if __name__ == "__main__":
    main()
