"""torch.distributed.checkpoint, `FileSystemWriter(overwrite=False)`: a save meets what a killed one left, and the error names no path.

Rank 0 is killed inside the save of step 60, once: `.metadata` is on the disk, and `latest.txt` does not name it yet. With `--left torn` a
shard is empty, as after a crash of the node, because the writer did not wait for the disk. The next save of that step raises on each rank:
"Checkpoint already exists and self.overwrite=False."
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


class Writer(dcp.FileSystemWriter):
    """Overwrites nothing. Its process may be killed right after it wrote `.metadata`."""

    def __init__(self, path: Path, left: str) -> None:
        super().__init__(str(path), overwrite=False)
        self._place, self._left = path, left

    def finish(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- as DCP has it
        """Write `.metadata`; at step 60 die, the first time."""
        super().finish(*args, **kwargs)
        if self._place.name == "step-60" and not Path("killed").exists():
            Path("killed").touch()
            if self._left == "torn":
                os.truncate(self._place / "__1_0.distcp", 0)
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train, from the step that the command or `latest.txt` names."""
    training = Training()
    training.parser.add_argument("--left", choices=["whole", "torn"], default="whole")
    resume = next((Path(value) for option, value in zip(sys.argv, sys.argv[1:], strict=False) if option == "--resume"), None)
    if resume is not None:  # a directory: the training of the other scripts loads a file
        at = sys.argv.index("--resume")
        del sys.argv[at : at + 2]
    training.begin()
    if resume is None and LATEST.exists():
        resume = Path("ckpt") / f"step-{LATEST.read_text()}"
    if resume is not None:
        state = {"model": training.model.state_dict()}
        dcp.load(state, checkpoint_id=str(resume))
        training.model.load_state_dict(state["model"])
        training.first = int(resume.name.rpartition("-")[2])
    for step in range(training.first + 1, training.options.steps + 1):
        training.step()
        if step % training.options.save_every == 0:
            place = Path("ckpt") / f"step-{step}"
            state = {"model": training.model.state_dict(), f"of rank {training.rank}": training.model.weight.detach().clone()}
            dcp.save(state, storage_writer=Writer(place, training.options.left))
            if training.rank == 0:
                LATEST.write_text(str(step))
            dist.barrier()


if __name__ == "__main__":
    main()
