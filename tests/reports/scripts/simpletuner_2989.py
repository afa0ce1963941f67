"""bghira/SimpleTuner PR#2989 (2026): a stale save of an older run has the greatest number; the rotation keeps it, not this run's own.

Killed once, at 25. Then the script resumes from the greatest number.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from training import Training


def number(path: Path) -> int:
    """Return the number in a save's name."""
    return int(path.stem.partition("-")[2])


training = Training()
if Path("killed").exists():
    training.first = torch.load(max(Path("ckpt").glob("step-*.pt"), key=number))["step"]
training.begin()
for step in range(training.first + 1, training.first + 60):
    if step == 25 and training.is_last:
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    training.step()
    if step % training.options.save_every == 0 and training.rank == 0:
        training.save(Path("ckpt") / f"step-{step}.pt", step)
        for path in sorted(Path("ckpt").glob("step-*.pt"), key=number)[:-1]:
            path.unlink()
