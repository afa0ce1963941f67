"""KempnerInstitute/KempnerForge#102 (2026): `latest` is moved, and an older save removed, before the asynchronous save is on the disk.

A thread writes the shard of a DCP save, and its .metadata later. The main thread moves the link at once. At step 60 the rank is killed
between the two, the first time. The script resumes from where the link leads.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from training import Training

CKPT = Path("ckpt")
LINK = CKPT / "latest"


def point_to(directory: Path) -> None:
    """Let the link lead to a directory."""
    LINK.unlink(missing_ok=True)
    LINK.symlink_to(directory.name)


def save(training: Training, step: int) -> None:
    """Write the shard, move the link, and write .metadata in a thread."""
    stage, final = Path("stage") / f"step-{step}", CKPT / f"step-{step}"
    dcp.save({"model": training.model.state_dict()}, checkpoint_id=stage, no_dist=True)
    final.mkdir(parents=True, exist_ok=True)
    for shard in stage.glob("*.distcp"):
        shutil.copy(shard, final)
    finish = threading.Thread(target=shutil.copy, args=(stage / ".metadata", final))
    if step == 60 and not Path("killed").exists():
        point_to(final)
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    finish.start()
    point_to(final)
    finish.join()


def main() -> None:
    """Train."""
    training = Training()
    training.begin()
    if LINK.is_symlink():
        place = LINK.resolve()
        saved = {"model": training.model.state_dict()}
        dcp.load(saved, checkpoint_id=place, no_dist=True)
        training.first = int(place.name.rpartition("-")[2])
    dist.barrier()
    for step in range(training.first + 1, training.options.steps + 1):
        training.step()
        if step % training.options.save_every == 0 and training.rank == 0:
            save(training, step)


if __name__ == "__main__":
    main()
