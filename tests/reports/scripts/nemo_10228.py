"""NVIDIA-NeMo/Speech PR#10228 (2024): a save is marked by NAME-unfinished beside it; the only one was marked, and all trained anew.

Saves lie in ckpt/step=N. The one of step 40 stays marked, since rank 1 is killed then, once. The script resumes from the newest unmarked.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import torch
from training import Training


class Nemo(Training):
    """The training with a marker beside each save while it is written."""

    def save(self, path: Path, step: int) -> None:
        """Write weights and optimizer into a directory of their own, marked until the end."""
        marker = path.with_name(f"{path.name}-unfinished")
        marker.touch()
        path.mkdir()
        torch.save({"model": self.model.state_dict(), "step": step}, path / "model.pt")
        torch.save({"optimizer": self.optimizer.state_dict(), "step": step}, path / "optim.pt")
        if step == self.options.die_at and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        marker.unlink()


training = Nemo()
training.parser.add_argument("--die-at", type=int, default=40)
saves = [path for path in Path("ckpt").glob("step=*") if re.fullmatch(r"step=\d+", path.name)]
whole = [path for path in saves if not path.with_name(f"{path.name}-unfinished").exists()]
if whole:
    newest = max(whole, key=lambda path: int(path.name.partition("=")[2]))
    training.first = torch.load(newest / "model.pt")["step"]
training.begin()
for step in range(training.first + 1, training.options.steps + 1):
    training.step()
    if step % training.options.save_every == 0 and training.rank == 0:
        path = Path("ckpt") / f"step={step}"
        if path.exists():
            path.rename(Path("ckpt") / f"old-{step}-{time.time_ns()}")
        training.save(path, step)
