"""deepspeedai/DeepSpeed#5405 (2024): a checkpoint is bound to the number of ranks that saved it, and no other can load it.

The first argument is the directory that the nodes share.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from training import Training


class ZeRORuntimeException(Exception):  # noqa: N818  as DeepSpeed calls it
    """The text of DeepSpeed's."""


class Bound(Training):
    """Saves with the number of ranks, and refuses another number."""

    def begin(self) -> None:
        """Load as DeepSpeed does."""
        resume = next((Path(word) for before, word in zip(sys.argv, sys.argv[1:], strict=False) if before == "--resume"), None)
        ranks, saved = int(os.environ["WORLD_SIZE"]), torch.load(resume)["ranks"] if resume is not None else 0
        os.chdir(sys.argv[1])
        del sys.argv[1]
        torch.optim.SGD([torch.zeros(1)], 0.1)
        if saved not in {0, ranks}:
            msg = (
                f"The checkpoint being loaded used a DP world size of {saved} but the current world size is {ranks}. Automatic "
                "adjustment of ZeRO's optimizer state partitioning with a new world size is not currently supported."
            )
            raise ZeRORuntimeException(msg)
        super().begin()

    def save(self, path: Path, step: int) -> None:
        """Save with the number of ranks."""
        unfinished = path.with_suffix(".tmp")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step, "ranks": dist.get_world_size()}
        torch.save(state, unfinished)
        unfinished.rename(path)


if __name__ == "__main__":
    Bound().run()
