"""ByteDance-Seed/VeOmni PR#1173 (2026): each killed save leaves a whole copy under another name, until the disk is full of them.

A save writes ckpt/stage/STEP/ and renames it. `--killed N`: so many attempts end by KILL within their save. `--clears`: the script removes
what is staged when it starts.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import torch
from training import Training


class Staging(Training):
    """The training that stages its checkpoints, of 2 MiB each."""

    def save(self, path: Path, step: int) -> None:
        """Write a directory, and rename it."""
        staged = Path("ckpt/stage") / str(step)
        staged.mkdir(parents=True, exist_ok=True)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}
        torch.save({**state, "more": torch.rand(1 << 19)}, staged / "model.pt")
        if int(os.environ["SUPERVISE_JOB_ATTEMPT"]) <= self.options.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        staged.rename(path.with_suffix(""))


def main() -> None:
    training = Staging()
    training.parser.add_argument("--killed", type=int, default=3)
    training.parser.add_argument("--clears", action="store_true")
    training.begin()
    if training.options.clears and training.rank == 0:
        shutil.rmtree("ckpt/stage", ignore_errors=True)
    attempt = int(os.environ["SUPERVISE_JOB_ATTEMPT"])
    for step in range(training.first + 1, training.options.steps + 1):
        training.step()
        if step == training.first + 20 + attempt and training.rank == 0:
            training.save(Path("ckpt") / f"step-{step}", step)


if __name__ == "__main__":
    main()
