"""FAIR-Chem/fairchem PR#1055 (2025): the path to resume from is frozen in the command, so each restart begins there. Killed once, at 70."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from training import Training


def before_step(training: Training, step: int) -> None:
    """Kill rank 1 before step 70, once."""
    if step == 70 and training.is_last and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


Training().run(before_step)
