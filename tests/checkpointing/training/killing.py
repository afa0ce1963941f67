"""Trainers that are killed (SIGKILL) in the middle of a save, one after another, and what is left of each.

    python killing.py save|sharded KILLS DIRECTORY

What the trainer has written so far places each kill. It prints a line of JSON for each. Each trainer is a fork of this process,
which has imported torch; all threads of torch are off, so that forking is sound. A state of step n is nothing but the number n.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from checkpointing import load_latest, save

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 4 << 20  # elements of each of two tensors: 32 MiB together
DEADLINE_S = 60.0


def state_of(step: int) -> dict[str, Any]:
    """Return a state that is whole only where all of it says the same step."""
    return {"step": step, "first": torch.full((COUNT,), float(step)), "last": torch.full((COUNT,), float(step))}


def is_whole(state: dict[str, Any]) -> bool:
    """Say whether a state is that of one step."""
    return all(bool((state[name] == state["step"]).all()) for name in ("first", "last"))


def train_saving(directory: str, start: int) -> None:
    """Save at every step, for ever."""
    step = start
    while True:
        step += 1
        save(state_of(step), directory, step=step, keep=2)


def train_sharding(directory: str, start: int) -> None:
    """Save through DCP at every step, for ever."""
    step = start
    while True:
        step += 1
        save(state_of(step), directory, step=step, sharded=True, keep=2)


def written(path: Path) -> int:
    """Return how many bytes a file, or a directory's files, have."""
    return sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else path.stat().st_size


def in_a_sharded_save(directory: Path, number: int) -> dict[str, Any]:
    """Kill in a save through DCP."""
    return in_a_save(directory, number, train_sharding)


def killed(train: Callable[[str, int], None], directory: Path, start: int, is_time: Callable[[int], bool]) -> None:
    """Start a trainer, wait for the moment, kill it."""
    pid = os.fork()
    if pid == 0:
        try:
            train(str(directory), start)
        finally:
            os._exit(1)
    deadline = time.monotonic() + DEADLINE_S
    while not is_time(pid) and time.monotonic() < deadline:
        time.sleep(0)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WTERMSIG(status) != signal.SIGKILL:
        sys.exit(f"the trainer ended by itself: {status}")


def in_a_save(directory: Path, number: int, train: Callable[[str, int], None] = train_saving) -> dict[str, Any]:
    """Kill when a part of the file (of the directory's files) is written: anything between its first byte and its name."""
    latest = load_latest(directory, into=state_of(0))
    start = latest.step or 0 if latest is not None else 0
    part = random.Random(number).uniform(0.05, 1.0) * 8 * COUNT  # noqa: S311 -- a place for a kill
    skip = 1 + number % 2  # not always in the first save of a trainer
    seen: set[str] = set()

    def is_time(_pid: int) -> bool:
        for path in directory.glob(".*.tmp-*"):
            with contextlib.suppress(FileNotFoundError):
                seen.add(path.name)
                if len(seen) > skip and written(path) >= part:
                    return True
        return False

    before = set(directory.glob(".*.tmp-*"))
    seen.update(path.name for path in before)
    skip += len(seen)
    killed(train, directory, start, is_time)
    left = set(directory.glob(".*.tmp-*")) - before
    checkpoint = load_latest(directory, into=state_of(0))
    return {
        "cut_short": bool(left),
        "size": max((written(path) for path in left), default=0),
        "step": None if checkpoint is None else checkpoint.step,
        "whole": checkpoint is not None and is_whole(checkpoint.state) and checkpoint.state["step"] == checkpoint.step,
        "passed_over": [] if checkpoint is None else checkpoint.passed_over,
        "start": start,
    }


KINDS = {"save": in_a_save, "sharded": in_a_sharded_save}


def main() -> None:
    """Kill as often as the arguments ask."""
    torch.set_num_threads(1)
    kind, kills, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    directory.mkdir(exist_ok=True)
    for number in range(1, kills + 1):
        print(json.dumps(KINDS[kind](directory, number)), flush=True)  # noqa: T201 -- its answer


if __name__ == "__main__":
    main()
