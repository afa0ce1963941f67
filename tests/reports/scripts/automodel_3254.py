"""NVIDIA-NeMo/Automodel#3254 (2026): a killed save leaves a directory, and the next save of that step raises because it is there.

Rank 0 is killed between the two files of step 60, once. `--raises` says how the next save of it fails: by a text of the script's own, by
os.makedirs, or by a rename to a directory that is not empty.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from training import Training


def _directory(step: int, raises: str) -> Path:
    """Make the directory of a save, as a script that expects none there."""
    final = Path("ckpt") / f"epoch_0_step_{step}"
    if raises == "own" and final.exists():
        message = f"Checkpoint directory {final} already exists"
        raise FileExistsError(message)
    if raises == "makedirs":
        os.makedirs(final)  # noqa: PTH103 -- as the script does it
        return final
    if raises == "rename":
        directory = final.with_name("saving")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        return directory
    final.mkdir()
    return final


def save(training: Training, step: int, raises: str, kill_at: int) -> None:
    """Save two files into a directory of their own; at `kill_at` rank 0 dies between the two, the first time."""
    if training.rank == 0:
        directory, final = _directory(step, raises), Path("ckpt") / f"epoch_0_step_{step}"
        torch.save(training.model.state_dict(), directory / "model.pt")
        if step == kill_at and not Path("killed").exists():
            Path("killed").touch()
            if raises == "rename":  # a launcher that is killed in a copy leaves a part under the final name
                directory.rename(final)
            os.kill(os.getpid(), signal.SIGKILL)
        torch.save(training.optimizer.state_dict(), directory / "optim.pt")
        if raises == "rename":
            directory.rename(final)
    dist.barrier()


def main() -> None:
    """Train."""
    training = Training()
    training.parser.add_argument("--raises", default="own")
    training.parser.add_argument("--kill-at", type=int, default=60)
    resume = next((Path(value) for option, value in zip(sys.argv, sys.argv[1:], strict=False) if option == "--resume"), None)
    if resume is not None:  # of two files: the training of the other scripts loads one
        at = sys.argv.index("--resume")
        del sys.argv[at : at + 2]
    training.begin()
    if resume is not None:
        training.model.load_state_dict(torch.load(resume / "model.pt"))
        training.optimizer.load_state_dict(torch.load(resume / "optim.pt"))
        training.first = int(resume.name.rpartition("_")[2])
    for step in range(training.first + 1, training.options.steps + 1):
        training.step()
        if step % training.options.save_every == 0:
            save(training, step, training.options.raises, training.options.kill_at)


if __name__ == "__main__":
    main()
