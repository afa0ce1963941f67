"""One rank of a gloo group that saves and loads together with the others: meeting.py FUNCTION PLACE, with the variables of torchrun.

Each rank writes the result of the function below to PLACE/rank-<n>.json.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from checkpointing import load_latest, save
from checkpointing.model import CheckpointingError

if TYPE_CHECKING:
    from collections.abc import Callable

CLONE_NEWNS = 0x20000


class Unruly:
    """A part of a state that cannot be had: torch asks it for its state and gets an error."""

    def state_dict(self) -> dict[str, Any]:
        """Fail."""
        raise ValueError("no state today")

    def load_state_dict(self, _state: dict[str, Any]) -> None:
        """Be stateful."""


def caught(call: Callable[[], object]) -> list[str]:
    """Return the type and text of what the call raises, and how many seconds it took."""
    began = time.monotonic()
    try:
        call()
    except BaseException as error:  # noqa: BLE001 -- whatever it is, the test sees it
        return [type(error).__name__, str(error), f"{time.monotonic() - began:.1f}"]
    return []


def whole(place: Path) -> dict[str, Any]:
    """Save by rank 0, fail on rank 0, save again, load."""
    rank = dist.get_rank()
    state = {"model": torch.ones(1000), "bad": None}
    first = save(state, place / "ckpt", step=1)
    failed = caught(lambda: save({**state, "bad": lambda: 1}, place / "ckpt", step=2))
    third = save({**state, "rank": rank}, place / "ckpt", step=3)
    found = load_latest(place / "ckpt")
    assert found is not None
    return {"first": first, "failed": failed, "third": third, "loaded": found.path, "from_rank": found.state["rank"]}


def sharded(place: Path) -> dict[str, Any]:
    """Save through DCP: well, with a rank that cannot give its state, with one whose disk is full, well again; load."""
    rank = dist.get_rank()
    state: dict[str, Any] = {f"weights-{rank}": torch.full((100_000,), float(rank)), "all": torch.arange(10.0)}
    save(state, place / "ckpt", step=1, sharded=True)
    no_state = caught(lambda: save({**state, "bad": Unruly() if rank == 1 else torch.ones(1)}, place / "ckpt", step=2, sharded=True))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    full = caught(lambda: save(state, place / "ckpt", step=3, sharded=True))
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    save(state, place / "ckpt", step=4, sharded=True, keep=1)
    empty = {name: torch.zeros_like(value) for name, value in state.items()}
    found = load_latest(place / "ckpt", into=empty)
    equal = found is not None and all(torch.equal(found.state[name], state[name]) for name in state)
    no_target = caught(lambda: load_latest(place / "ckpt"))
    return {"no_state": no_state, "full": full, "equal": equal, "step": found and found.step, "no_target": no_target}


def absent(place: Path) -> dict[str, Any]:
    """Have rank 1 come to the save only after rank 0 has given up."""
    gave_up = place / "rank-0-gave-up"
    if dist.get_rank() == 1:
        _wait_for(gave_up)
    failed = caught(lambda: save({}, place / "ckpt", step=1, timeout_s=1))
    if dist.get_rank() == 0:
        gave_up.touch()
    return {"failed": failed}


def _wait_for(path: Path, deadline_s: float = 60.0) -> None:
    until = time.monotonic() + deadline_s
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear within {deadline_s} s"
        time.sleep(0.02)


def one_disk_each(place: Path) -> dict[str, Any]:
    """Load where every node has a disk of its own (a mount namespace each): rank 1's newest is torn, rank 2 never got the next."""
    rank = dist.get_rank()
    here = place / "ckpt"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        return {"skip": os.strerror(ctypes.get_errno())}
    disk = place / f"disk-{rank}"
    disk.mkdir()
    here.mkdir(exist_ok=True)
    for words in (["mount", "--make-rprivate", "/"], ["mount", "--bind", str(disk), str(here)]):
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 -- our own
        if done.returncode:
            return {"skip": done.stderr}
    for step in (1, 2, 3):
        torch.save({"step": step, "weights": torch.full((1000,), float(step))}, here / f"step-{step:08d}.pt")
    if rank == 1:
        os.truncate(here / "step-00000003.pt", 3000)
    if rank == 2:
        (here / "step-00000002.pt").unlink()
    dist.barrier()
    found = load_latest(here)
    return {"step": found and found.step, "of": found and found.state["step"], "passed_over": found and found.passed_over}


def sharded_on_one_disk_each(place: Path) -> dict[str, Any]:
    """Save in shards where every node has a disk of its own (a mount namespace each)."""
    rank = dist.get_rank()
    here, disk = place / "ckpt", place / f"disk-{rank}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        return {"skip": os.strerror(ctypes.get_errno())}
    disk.mkdir()
    here.mkdir(exist_ok=True)
    for words in (["mount", "--make-rprivate", "/"], ["mount", "--bind", str(disk), str(here)]):
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 -- our own
        if done.returncode:
            return {"skip": done.stderr}
    dist.barrier()
    failed = caught(lambda: save({f"weights-{rank}": torch.ones(100)}, here, step=1, sharded=True, keep=1))
    whole_save = caught(lambda: save({"weights": torch.ones(100)}, here, step=2))
    return {"failed": failed, "then": whole_save, "left": sorted(path.name for path in here.iterdir())}


def alone_in_trouble(place: Path) -> dict[str, Any]:
    """Have one rank be unable to load what all agreed on: none goes on without it."""
    save({"weights": torch.ones(10)}, place / "ckpt", step=1)
    where = "cpu" if dist.get_rank() == 0 else "no-such-device"
    failed = caught(lambda: load_latest(place / "ckpt", map_location=where))
    found = load_latest(place / "ckpt")
    return {"failed": failed, "then": found and found.step, "error": CheckpointingError.__name__}


def main() -> None:
    """Do it, and write down what was seen."""
    name, place = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo")
    seen = globals()[name](place)
    (place / f"rank-{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
