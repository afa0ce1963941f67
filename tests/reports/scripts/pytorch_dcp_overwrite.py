"""torch.distributed.checkpoint, `FileSystemWriter(overwrite=False)`: a save meets what a killed one left, and the error names no path.

A save has two parts, `step-N/model` and `step-N/optim`. Rank 0 is killed in the save of step 60, once: between the two parts, or with
`--killed after` once both are there, before `latest.txt` names them. The next save of that step raises on each rank: "Checkpoint already
exists and self.overwrite=False." With `--plans alone` the ranks plan without collectives, and the error is a bare RuntimeError.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from training import Training

LATEST = Path("ckpt/latest.txt")


def save_part(state: dict[str, Any], directory: Path, plans: str) -> None:
    """Save one part; nothing is overwritten."""
    writer = dcp.FileSystemWriter(str(directory), overwrite=False)
    dcp.save(state, storage_writer=writer, use_collectives=plans == "together")


def save(training: Training, step: int) -> None:
    """Save both parts, and then name them."""
    place = Path("ckpt") / f"step-{step}"
    kills = step == 60 and training.rank == 0 and not Path("killed").exists()  # noqa: PLR2004 -- the third save
    save_part({"model": training.model.state_dict()}, place / "model", training.options.plans)
    if kills and training.options.killed == "between":
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    save_part({"step": step}, place / "optim", training.options.plans)
    if kills:
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    if training.rank == 0:
        LATEST.write_text(str(step))


def main() -> None:
    """Train, from the step that `latest.txt` or the command names."""
    training = Training()
    training.parser.add_argument("--killed", choices=["between", "after"], default="between")
    training.parser.add_argument("--plans", choices=["together", "alone"], default="together")
    resume = next((Path(value) for option, value in zip(sys.argv, sys.argv[1:], strict=False) if option == "--resume"), None)
    if resume is not None:  # a directory: the training of the other scripts loads a file
        at = sys.argv.index("--resume")
        del sys.argv[at : at + 2]
    training.begin()
    if resume is None and LATEST.exists():
        resume = Path("ckpt") / f"step-{LATEST.read_text()}"
    if resume is not None:
        state = {"model": training.model.state_dict()}
        dcp.load(state, checkpoint_id=str(resume / "model"))
        training.model.load_state_dict(state["model"])
        training.first = int(resume.name.rpartition("-")[2])
    for step in range(training.first + 1, training.options.steps + 1):
        training.step()
        if step % training.options.save_every == 0:
            save(training, step)


if __name__ == "__main__":
    main()
