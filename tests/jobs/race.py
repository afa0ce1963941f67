"""Two ranks, of which rank 1 reads the checkpoint while rank 0 writes it. Held together by FIFOs, not by luck.

    race.py --ckpt ckpt/last.pt [--resume PATH]

Rank 0 saves through a file that it opened. Once the first bytes are in the file, rank 1 loads it, fails, has rank 0 finish, and raises. So
the file is whole when rank 1 dies. With --resume, which the next attempt gets, nobody saves: both load, and end well. `seen` gets a line
for each attempt of rank 1.
"""

from __future__ import annotations

import argparse
import io
import os
from pathlib import Path

import torch
import torch.distributed as dist

BEGUN, FAILED, WHOLE = "begun.fifo", "failed.fifo", "whole.fifo"


class Held(io.FileIO):
    """A file that waits, after its first bytes, until the other rank has failed to read it."""

    is_held = False

    def write(self, data: object) -> int:
        """Write, and wait once."""
        count = super().write(data)  # type: ignore[arg-type]  # whatever torch writes
        if self.tell() >= 64 and not self.is_held:
            self.is_held = True
            tell(BEGUN)
            wait(FAILED)
        return count or 0


def tell(fifo: str) -> None:
    """Let the other rank continue; waits until it is there."""
    with Path(fifo).open("w") as file:
        file.write("x")


def wait(fifo: str) -> None:
    """Wait for the other rank."""
    with Path(fifo).open() as file:
        file.read()


def main() -> None:
    """Race, or resume."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--resume", default="")
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    for fifo in (BEGUN, FAILED, WHOLE) if rank == 0 else ():
        if not Path(fifo).exists():
            os.mkfifo(fifo)
    dist.init_process_group("gloo")
    dist.barrier()
    if args.resume:
        assert torch.load(args.resume)["step"] == 1
    elif rank == 0:
        with Held(args.ckpt, "w") as file:
            torch.save({"step": 1, "weight": torch.zeros(4096)}, file)
        tell(WHOLE)
    else:
        read_too_early(args.ckpt)
    dist.barrier()
    dist.destroy_process_group()


def read_too_early(path: str) -> None:
    """Load what rank 0 is writing, and raise once rank 0 is done."""
    wait(BEGUN)
    try:
        torch.load(path)
    except Exception as error:
        with Path("seen").open("a") as seen:
            print(f"{type(error).__name__}: {error}".splitlines()[0], file=seen)
        tell(FAILED)
        wait(WHOLE)
        raise


if __name__ == "__main__":
    main()
