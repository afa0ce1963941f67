"""pytorch/torchtitan#909 (2025): one rank lists the directory of the run before another one's mkdir is visible.

The first argument: `listed` (rank 1 lists it too early), `made-by-both` (both see that it is missing, and rank 1's mkdir is the second), or
`never` (nobody makes it).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from training import Training

RUN = Path("outputs/test")
SEEN = Path("seen")  # that it is missing


def awaited(path: Path) -> None:
    """Wait until another rank made it: what happens in a moment elsewhere takes no luck here."""
    while not path.exists():
        time.sleep(0.01)


def main() -> None:
    how = sys.argv.pop(1)
    training = Training()
    training.begin()
    if how == "never":
        list(RUN.iterdir())
    elif training.rank == 0:
        if not RUN.exists():
            awaited(SEEN)
            RUN.mkdir(parents=True)
            time.sleep(1000)  # until the other one's end is seen
    else:
        exists = RUN.exists()
        SEEN.touch()
        try:
            if how == "listed":
                list(RUN.iterdir())
            elif not exists:
                awaited(RUN)
                RUN.mkdir()
        except FileNotFoundError:
            awaited(RUN)
            raise
    for step in range(training.first + 1, training.options.steps + 1):
        training.step()
        if step % training.options.save_every == 0 and training.rank == 0:
            training.save(Path("ckpt") / f"step-{step}.pt", step)


main()
