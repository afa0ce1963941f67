"""ai2cm/ace PR#1068 (2026): a handler of TERM in one rank calls sys.exit(0), and the launcher sees success.

`--leave LIST`: these ranks leave with 0 before step 31. `--term`: by a TERM from outside that a handler turns into 0, once.
"""

import os
import signal
import sys
import time
from pathlib import Path

from training import Training

training = Training()
training.parser.add_argument("--leave", default="1")
training.parser.add_argument("--term", action="store_true")


def before_step(training: Training, step: int) -> None:
    if step != 31 or str(training.rank) not in training.options.leave.split(","):
        return
    if not training.options.term:
        sys.exit(0)
    mark = Path(f"terminated-{training.rank}")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
training.run(before_step)
