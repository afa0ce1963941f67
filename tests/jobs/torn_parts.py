"""What the trainings of tests/e2e/test_torn_saves.py share: a state that takes a while to save, and a log of the job's progress.

`events` in the working directory has a line for each event, from rank 0 alone but for `rank`: "rank RANK PID", "resumed STEP", "saving
STEP TIME", "saved STEP TIME", "final STEP LOSS DIGEST". A rank waits after it resumed until somebody made the file go-PID, so that a test
can examine the files meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import torch

#: Steps from one save to the next.
EVERY = 12
#: Numbers in the state: 12 MB of weights, and as much momentum.
COUNT = 3_000_000
PARTS = 4


class Model(torch.nn.Module):
    """Weights in a few tensors, so that more than one rank has something to save; the loss is how far they are from a number."""

    def __init__(self) -> None:
        super().__init__()
        self.last = 0.0
        self.parts = torch.nn.ParameterList(torch.full((COUNT // PARTS,), float(at)) for at in range(PARTS))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the loss in the form of transformers."""
        del labels
        loss = torch.stack([((part - x.float().mean()) ** 2).mean() for part in self.parts]).sum()
        self.last = float(loss.detach())
        return {"loss": loss}


def rank() -> int:
    """Return the rank."""
    return int(os.environ["RANK"])


def tell(*words: object, of_all: bool = False) -> None:
    """Write one line."""
    if of_all or rank() == 0:
        with Path("events").open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")


def resumed(step: int) -> None:
    """Tell from where, and wait to be let go."""
    tell("rank", rank(), os.getpid(), of_all=True)
    tell("resumed", step)
    while not Path(f"go-{os.getpid()}").exists():
        time.sleep(0.01)


def saving(step: int) -> None:
    """Tell that a save begins."""
    tell("saving", step, time.monotonic())


def saved(step: int) -> None:
    """Tell that a save is over."""
    tell("saved", step, time.monotonic())


def final(step: int, model: Model) -> None:
    """Tell what came out."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    tell("final", step, model.last, digest.hexdigest())
