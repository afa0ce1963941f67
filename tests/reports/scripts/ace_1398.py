"""ai2cm/ace PR#1398 (2026): a rank is killed with its communicators open, and the GPU of its NVLink peer faults.

--alone: the rank faults though nobody was killed.
"""

from __future__ import annotations

import os
import signal
import time

from training import Training

FAULT = "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"


def faulted(training: Training, step: int) -> None:
    """At step 30 of the first attempt rank 1 is killed, and rank 0 faults half a second later."""
    if step != 30 or training.first:
        return
    if training.rank == 1 and not training.options.alone:
        os.kill(os.getpid(), signal.SIGKILL)
    if training.rank == 0:
        time.sleep(0.5)
        raise RuntimeError(FAULT)


training = Training()
training.parser.add_argument("--alone", action="store_true")
training.run(faulted)
