"""huggingface/accelerate#996 (2023): the launcher returns 0 after a rank's error; so does `cmd | tee log`, and `cmd; echo done`.

Rank `--rank` fails before step 31, as `--how` says; once with `--once`, so that a second launch trains to the end.
"""

import ctypes
import logging
import subprocess
import sys
from pathlib import Path

from training import Training

training = Training()
training.parser.add_argument("--rank", type=int, default=1)
training.parser.add_argument("--how", default="raise")
training.parser.add_argument("--once", action="store_true")


def before_step(training: Training, step: int) -> None:
    options = training.options
    if step != 31 or training.rank != options.rank:
        return
    if options.how == "survive":
        try:
            int("labels of sample 7")
        except ValueError:
            logging.getLogger("data").exception("sample 7 is passed over")
    elif options.how == "child":
        subprocess.run([sys.executable, "-c", "raise ValueError('of a helper')"], check=False)
    elif not (options.once and Path("failed").exists()):
        Path("failed").touch()
        if options.how == "segfault":
            ctypes.string_at(0)
        raise ValueError("labels of sample 7")


training.run(before_step)
