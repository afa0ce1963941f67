"""The training of the reports: gloo ranks, rank 0 saves ckpt/step-N.pt at each 20th of 200 steps; `--resume PATH` continues from one.

Started without a launcher it is a training of one rank, which is the first and the last.

A script that rebuilds a report gives a function that is called before each step, or calls `begin`, `step` and `save` itself:

    from training import Training
    Training().run(before_step)
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[2] / "jobs"))
from light import light_sgd

if TYPE_CHECKING:
    from collections.abc import Callable


class Training:
    """One rank of it. `options`: the parsed command line, to which a script may add its own options before `begin`."""

    def __init__(self) -> None:
        """Declare the options that all scripts share."""
        self.parser = argparse.ArgumentParser()
        self.parser.add_argument("--resume", type=Path)
        self.parser.add_argument("--steps", type=int, default=200)
        self.parser.add_argument("--pace-s", type=float, default=0.01)
        self.parser.add_argument("--save-every", type=int, default=20)
        self.options = argparse.Namespace()
        self.rank, self.first = 0, 0

    @property
    def is_last(self) -> bool:
        """Whether it is the last rank: the one that fails in most reports."""
        return self.rank == dist.get_world_size() - 1

    def begin(self) -> None:
        """Read the command line, join the other ranks, and load the checkpoint where one is given."""
        self.options = self.parser.parse_args()
        alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group("gloo", **alone)
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.model = torch.nn.Linear(64, 64)
        self.optimizer = light_sgd(torch, self.model.parameters())
        if self.options.resume is not None:
            saved = torch.load(self.options.resume)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.first = saved["step"]
        if self.rank == 0:
            Path("ckpt").mkdir(exist_ok=True)
            sys.stdout.write(f"training from step {self.first}\n")
            sys.stdout.flush()

    def step(self) -> None:
        """Train one step; all ranks meet in it."""
        self.model(torch.ones(4, 64)).sum().backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        time.sleep(self.options.pace_s)

    def save(self, path: Path, step: int) -> None:
        """Write a checkpoint through a temporary name."""
        unfinished = path.with_suffix(".tmp")
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}, unfinished)
        unfinished.rename(path)

    def run(self, before_step: Callable[[Training, int], None] | None = None) -> None:
        """Train to the last step; `before_step` is called with the number of each before it begins."""
        self.begin()
        for step in range(self.first + 1, self.options.steps + 1):
            if before_step is not None:
                before_step(self, step)
            self.step()
            if step % self.options.save_every == 0 and self.rank == 0:
                self.save(Path("ckpt") / f"step-{step}.pt", step)


if __name__ == "__main__":
    Training().run()
