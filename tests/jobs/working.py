"""A gloo training in which rank 0 works for long in one place that looks like waiting; the other ranks wait for it in a barrier.

`--work NAME` names what it does, for --long-s; `--at` is the step before which it does, 0: before the first one. None of it is a hang.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from light import light_sgd
from working_names import WORKS

if TYPE_CHECKING:
    from collections.abc import Callable

#: A shell that computes for so many seconds, a third of the time: a child that runs another program than the rank.
COUNTS = "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done"
COMPUTES = f"end=$(( $(date +%s) + {{0:.0f}} )); while [ $(date +%s) -lt $end ]; do {COUNTS}; sleep 0.2; done"
#: Bytes a second of what is slow: thirty times what two looks in 30 s would show, because here they are 3 s apart.
RATE, PIECE = 600_000, 60_000


def computes(seconds: float) -> int:
    """Use a third of a processor for so long; returns how often it counted."""
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        pause = time.thread_time() + 0.02
        while time.thread_time() < pause:
            count += sum(range(10_000))
        time.sleep(0.04)
    return count


class Work:
    """What rank 0 does: a method for each kind."""

    def __init__(self, seconds: float) -> None:
        """Hold for how long."""
        self.seconds = seconds

    def evaluation(self) -> None:
        """Judge the model in one loop."""
        computes(self.seconds)

    def polling_loader(self) -> None:
        """Ask for the next batch again and again; another process makes it."""
        batches: multiprocessing.Queue[int] = multiprocessing.get_context("fork").Queue()
        maker = multiprocessing.get_context("fork").Process(target=lambda: batches.put(computes(self.seconds)))
        maker.start()
        while True:
            try:
                batches.get(timeout=0.05)
                break
            except queue.Empty:
                continue
        maker.join()

    def quiet_queue(self) -> None:
        """Wait in queue.get without a limit, while other processes compute."""
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            list(pool.map(computes, [self.seconds] * 2))

    def progress_thread(self) -> None:
        """Sleep in the main thread, which shows how far a thread has come that does the work."""
        worker = threading.Thread(target=computes, args=(self.seconds,))
        worker.start()
        while worker.is_alive():
            time.sleep(0.1)

    def child(self) -> None:
        """Wait for a process that works."""
        subprocess.run(["sh", "-c", COMPUTES.format(self.seconds)], check=True)  # noqa: S603, S607 - a shell

    def polled_child(self) -> None:
        """Ask again and again whether a process that works has ended."""
        with subprocess.Popen(["sh", "-c", COMPUTES.format(self.seconds)]) as process:  # noqa: S603, S607 - as above
            while process.poll() is None:
                time.sleep(0.1)

    def build(self) -> None:
        """Wait for a build that starts one short compiler after the other."""
        script = f"end=$(( $(date +%s) + {self.seconds:.0f} )); while [ $(date +%s) -lt $end ]; do sh -c '{COUNTS}'; sleep 0.2; done"
        subprocess.run(["sh", "-c", script], check=True, capture_output=True)  # noqa: S603, S607 - as above

    def download(self) -> None:
        """Receive slowly, in the main thread and into memory."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=self._feed, args=(server,), daemon=True).start()
            with socket.create_connection(server.getsockname()) as source:
                while source.recv(PIECE):
                    pass

    def _feed(self, server: socket.socket) -> None:
        connection, _ = server.accept()
        until = time.monotonic() + self.seconds
        with connection:
            while time.monotonic() < until:
                connection.sendall(b"x" * PIECE)
                time.sleep(PIECE / RATE)

    def slow_disk(self) -> None:
        """Write to a disk that takes its time."""
        until = time.monotonic() + self.seconds
        with Path("slow").open("wb", buffering=0) as file:
            while time.monotonic() < until:
                file.write(b"x" * PIECE)
                os.fsync(file.fileno())
                time.sleep(PIECE / RATE)

    def child_download(self) -> None:
        """Wait for a process that receives or writes slowly."""
        script = f"i=0; while [ $i -lt {self.seconds * 10:.0f} ]; do head -c {PIECE} /dev/zero >> slow; sleep 0.1; i=$((i+1)); done"
        subprocess.run(["sh", "-c", script], check=True)  # noqa: S603, S607 - as above

    def sleep(self) -> None:
        """Sleep by purpose, for less than the limit."""
        time.sleep(min(self.seconds, 4.0))


def main() -> None:
    """Train, with the work in between."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=WORKS, required=True)
    parser.add_argument("--at", type=int, default=40)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--long-s", type=float, default=14.0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 8)
    optimizer = light_sgd(torch, model.parameters())
    work: Callable[[], None] = getattr(Work(args.long_s), args.work)
    for step in range(args.steps):
        if step == args.at:
            if dist.get_rank() == 0:
                work()
            dist.barrier()
        model(torch.ones(4, 8)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
    sys.stdout.write("trained\n")


if __name__ == "__main__":
    main()
