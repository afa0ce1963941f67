"""marin-community/marin#8534 (2026): after a restore one rank's read stalls, and a barrier without a timeout holds the others for hours.

Rank 1 reads its part of the checkpoint at 10 KB/s; the others wait in a barrier. `--from`: a file, or a pipe that is fed so slowly.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import torch.distributed as dist
from training import Training

RATE, PIECE = 10_000, 1_000


def restore(source: str, seconds: float) -> int:
    """Read a part of a checkpoint from a storage that is slow."""
    count, part = 0, Path(f"part.{source}")
    if source == "pipe":
        os.mkfifo(part)
        threading.Thread(target=feed, args=(part, seconds), daemon=True).start()
    else:
        part.write_bytes(b"x" * int(RATE * seconds))
    with part.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            count += len(piece)
            if source == "file":
                time.sleep(PIECE / RATE)
    return count


def feed(part: Path, seconds: float) -> None:
    """Write into the pipe as slowly as the storage delivers."""
    with part.open("wb", buffering=0) as file:
        for _ in range(int(RATE * seconds / PIECE)):
            file.write(b"x" * PIECE)
            time.sleep(PIECE / RATE)


def main() -> None:
    """Restore, then train."""
    training = Training()
    training.parser.add_argument("--from", dest="source", default="file")
    training.parser.add_argument("--slow-s", type=float, default=12.0)
    training.begin()
    if training.rank == 1:
        restore(training.options.source, training.options.slow_s)
    dist.barrier()
    for _ in range(training.options.steps):
        training.step()


main()
