# no report: a case of the same kind. The script resumes from best.pt, a link to an older save than the newest one; rank 1 is killed once.
"""The training of the reports, which resumes by itself from ckpt/best.pt; rank 1 dies before step 70, once."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from training import Training

BEST, KILLED = Path("ckpt", "best.pt"), Path("killed")
if BEST.exists():
    sys.argv += ["--resume", str(BEST)]


def before_step(training: Training, step: int) -> None:
    if training.rank == 0 and step == 21 and not BEST.is_symlink():
        BEST.symlink_to("step-20.pt")
    if training.is_last and step == 70 and not KILLED.exists():
        KILLED.touch()
        os.kill(os.getpid(), signal.SIGKILL)


Training().run(before_step)
