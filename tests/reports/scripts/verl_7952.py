"""verl-project/verl#7952 (2026): the background save never writes latest_checkpointed_iteration.txt, by which alone the script resumes.

Saves lie in ckpt/global_step_N. With --tracker they are named there, as by a save in the foreground. Rank 1 is killed once, at step 50.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from training import Training

TRACKER = Path("ckpt") / "latest_checkpointed_iteration.txt"


class Verl(Training):
    """The training with a directory for each save, and an optimizer that counts its steps, as verl's Adam does."""

    def step(self) -> None:
        """Count the step where Adam does, and train it."""
        for parameter in self.model.parameters():
            state = self.optimizer.state[parameter]
            state["step"] = state.get("step", 0) + 1
        super().step()

    def save(self, path: Path, step: int) -> None:
        """Write weights and optimizer into a directory of their own."""
        path.mkdir()
        torch.save({"model": self.model.state_dict(), "step": step}, path / "model.pt")
        torch.save({"optimizer": self.optimizer.state_dict(), "step": step}, path / "optim.pt")
        if self.options.tracker:
            TRACKER.write_text(str(step))


training = Verl()
training.parser.add_argument("--tracker", action="store_true")
if TRACKER.exists():
    newest = Path("ckpt") / f"global_step_{TRACKER.read_text()}"
    weights = torch.load(newest / "model.pt")
    training.first = weights["step"]
training.begin()
for step in range(training.first + 1, training.options.steps + 1):
    if step == 50 and training.is_last and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    training.step()
    if step % training.options.save_every == 0 and training.rank == 0:
        training.save(Path("ckpt") / f"global_step_{step}", step)
