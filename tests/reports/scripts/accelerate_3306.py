"""huggingface/accelerate#3306 (2024): the saves are numbered from 0 again after a resume, so the newest has the least number.

Killed at 65, and again at 85.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from training import Training

training = Training()
training.begin()
for number, step in enumerate(range(training.first + 1, training.options.steps + 1)):
    killed = Path(f"killed-{step}")
    if step in {65, 85} and training.is_last and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    training.step()
    if step % training.options.save_every == 0 and training.rank == 0:
        training.save(Path("ckpt") / f"checkpoint_{number // training.options.save_every}.pt", step)
