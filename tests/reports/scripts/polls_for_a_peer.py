"""pytorch/pytorch#189245 (2026), a sister: a rank polls for a file of a rank that left with 0.

Rank 1 leaves before step 30, and rank 0 waits for its part. `--how`: by a file that it asks for, or by a named pipe.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from training import Training


def wait_for_part(how: str) -> None:
    """Wait for what rank 1 writes once it has come so far."""
    part = Path("part-of-rank-1")
    if how == "file":
        while not part.exists():
            time.sleep(0.05)
        return
    os.mkfifo(part)
    part.read_bytes()


def main() -> None:
    """Train, with an exchange by the disk."""
    training = Training()
    training.parser.add_argument("--how", default="file")

    def before_step(_training: Training, step: int) -> None:
        if step == 30 and os.environ.get("SUPERVISE_JOB_ATTEMPT") == "1":
            if training.rank == 1:
                sys.stdout.flush()
                os._exit(0)
            wait_for_part(training.options.how)

    training.run(before_step)


main()
