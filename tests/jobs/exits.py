"""A training that names its last step, saves a checkpoint of it, and then does not leave, or dies: `exits.py --how HOW`.

Without torchrun it is one rank without torch. Under it the ranks meet in gloo's collectives. `--rank`: which one it happens to.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor import worker

if TYPE_CHECKING:
    from collections.abc import Callable


def save(step: int) -> None:
    """Write a checkpoint that can be verified, through a temporary name."""
    head = json.dumps({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    Path("ckpt").mkdir(exist_ok=True)
    unfinished = Path(f"ckpt/.step-{step}")
    unfinished.write_bytes(len(head).to_bytes(8, "little") + head + bytes(range(16)))
    unfinished.rename(f"ckpt/step-{step}.safetensors")


def stand() -> None:
    """Do nothing for ever."""
    time.sleep(1e6)


def upload() -> None:
    """Send a result for ever, a few KB at a time."""
    sender, receiver = socket.socketpair()
    while True:
        sender.sendall(bytes(4096))
        receiver.recv(4096)
        Path("upload").write_bytes(bytes(4096))
        time.sleep(0.1)


def hold() -> None:
    """Keep a checkpoint open for writing."""
    with Path("ckpt/step-final.safetensors.tmp").open("wb"):
        stand()


def compute() -> None:
    """Use CPU time for ever, a little at a time."""
    while True:
        sum(range(500_000))
        time.sleep(0.01)


def evaluate() -> None:
    """Begin a second phase: heartbeats continue."""
    for step in range(LAST, LAST + 1000):
        worker.heartbeat(step)
        time.sleep(0.3)


def throw() -> None:
    """Die as a destructor of C++ does."""
    sys.stderr.write("terminate called after throwing an instance of 'c10::Error'\n  what():  NCCL communicator was aborted\n")
    sys.stderr.flush()
    os.abort()


def thread() -> None:
    """End the script, and leave a thread that does not end."""
    threading.Thread(target=stand, name="upload").start()


def uploads() -> None:
    """Stand, while a thread sends."""
    threading.Thread(target=upload, daemon=True).start()
    stand()


def later(end: Callable[[], None]) -> Callable[[], None]:
    """Have a process die once its last save was seen."""
    return lambda: (time.sleep(3.0), end())[1]


LAST = 30
#: What the culprit does after its last step; `barrier` and `all` are for the others too.
ENDS: dict[str, Callable[[], object]] = {
    "stand": stand,
    "all": stand,
    "barrier": stand,
    "thread": thread,
    "upload": uploads,
    "hold": hold,
    "compute": compute,
    "evaluate": evaluate,
    "die": later(throw),
    "die at once": throw,
    "at exit": lambda: atexit.register(throw),
    "kill": later(lambda: os.kill(os.getpid(), signal.SIGSEGV)),
    "code": later(lambda: os._exit(3)),
}


def main() -> None:
    """Train, save, and end as `--how` says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=ENDS, default="stand")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--no-save", action="store_true")
    parser.add_argument("--resume", default="step-0.x")
    options = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        import torch.distributed as dist  # noqa: PLC0415  one rank alone needs no torch

        dist.init_process_group("gloo")
    first = int(options.resume.rpartition("-")[2].partition(".")[0])
    with Path("trained").open("a", encoding="ascii") as trained:
        trained.write(f"{rank} {first}\n")
    for step in range(first + 1, LAST + 1):
        worker.heartbeat(step, LAST)
        time.sleep(0.02)
    if rank == 0 and not options.no_save:
        save(LAST)
    if rank == options.rank or options.how == "all":
        ENDS[options.how]()
    elif options.how == "barrier":
        dist.barrier()


main()
