"""pytorch/torchtitan PR#4292 (2026): an expression for "step-" and digits also matches step-60.backup.

The script resumes by itself. `--finds` says how: `walk` takes the greatest number that the expression finds anywhere below `ckpt`,
`listing` takes int(name.split("-")[1]) of every name in it, `registry` the last save in a list of its own, and the one before where that is
not whole.
Rank 0 is killed within the save of step 60, the first time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from training import Training

CKPT, REGISTRY = Path("ckpt"), Path("registry.json")


class Kill:
    """It is saved as the end of the process: the file is open then, and not whole."""

    def __reduce__(self) -> str:
        """End the process."""
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
        return ""


def newest(finds: str) -> int:
    """Return the step to resume from."""
    if finds == "walk":
        matches = [re.search(r"step-(\d+)", os.path.join(top, name)) for top, below, files in os.walk(CKPT) for name in (*below, *files)]  # noqa: PTH118 -- as the script does it
        return max((int(match[1]) for match in matches if match), default=0)
    if finds == "listing":
        return max((int(name.split("-")[1]) for name in os.listdir(CKPT)), default=0)  # noqa: PTH208 -- as above
    saves = json.loads(REGISTRY.read_text()) if REGISTRY.exists() else []
    for step in reversed(saves):
        json.loads((CKPT / f"step-{step}" / "meta.json").read_text())
        if (CKPT / f"step-{step}" / "optim.pt").exists():
            return int(step)
    return 0


def save(training: Training, step: int) -> None:
    """Save two files into a directory of their own."""
    directory = CKPT / f"step-{step}"
    directory.mkdir(exist_ok=True)
    (directory / "meta.json").write_text(json.dumps({"step": step}))
    saves = json.loads(REGISTRY.read_text()) if REGISTRY.exists() else []
    REGISTRY.write_text(json.dumps([*(saved_step for saved_step in saves if saved_step != step), step]))
    kill = {"kill": Kill()} if step == 60 and not Path("killed").exists() else {}
    torch.save({**training.model.state_dict(), **kill}, directory / "model.pt")
    torch.save(training.optimizer.state_dict(), directory / "optim.pt")


def main() -> None:
    """Train."""
    training = Training()
    training.parser.add_argument("--finds", default="walk")
    training.begin()
    CKPT.mkdir(exist_ok=True)
    dist.barrier()
    training.first = newest(training.options.finds)
    if training.first:
        directory = CKPT / f"step-{training.first}"
        training.model.load_state_dict(torch.load(directory / "model.pt"))
        training.optimizer.load_state_dict(torch.load(directory / "optim.pt"))
    if training.rank == 0:
        sys.stdout.write(f"continues from step {training.first}\n")
        sys.stdout.flush()
    for step in range(training.first + 1, training.options.steps + 1):
        training.step()
        if step % training.options.save_every == 0 and training.rank == 0:
            save(training, step)


if __name__ == "__main__":
    main()
