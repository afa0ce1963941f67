"""ultralytics/ultralytics#20044 (2025): the program starts torch.distributed.run on a script that it wrote, and deletes it in the end.

The words up to `--` say how the ranks are started, those behind it are the training's.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

TRAINING = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from training import Training

def before_step(training, step):
    if step == training.options.raise_at and training.rank == 1 and not training.first:
        raise ValueError("sample 50 has no label")

training = Training()
training.parser.add_argument("--raise-at", type=int)
training.run(before_step)
"""


def main(how: str, *arguments: str) -> None:
    """Write the script, start it on two ranks, and delete it whatever happens."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", dir=".", prefix="_temp_", delete=False) as file:
        file.write(TRAINING)
    launch = ["--standalone", "--nproc-per-node=2", file.name, *arguments]
    try:
        if how == "run":
            subprocess.run([sys.executable, "-m", "torch.distributed.run", *launch], check=True)  # noqa: S603 - as the program does
        elif how == "own-environment":
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run(["torchrun", *launch], check=True, env=environment)  # noqa: S603, S607 - as above
        elif how == "shell":
            raise SystemExit(os.waitstatus_to_exitcode(os.system(shlex.join(["torchrun", *launch]))))  # noqa: S605 - as above
        elif how == "in-process":  # as `accelerate launch` and a notebook's runner do
            from torch.distributed.run import main as torchrun  # noqa: PLC0415 - as above

            torchrun(launch)
    finally:
        Path(file.name).unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
