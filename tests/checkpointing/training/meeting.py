"""One rank of a gloo group that saves and loads together with the others: meeting.py FUNCTION PLACE, with the variables of torchrun.

Each rank writes the result of the function below to PLACE/rank-<n>.json.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from checkpointing import load_latest, save
from checkpointing.model import CheckpointingError
from checkpointing.training import broadcast, ranks

if TYPE_CHECKING:
    from collections.abc import Callable

CLONE_NEWNS = 0x20000
#: After such a function some ranks are gone, or wait where the others never come.
APART = frozenset({"rank_0_alone", "rank_in_a_collective", "rank_dead", "sent_to_the_dead"})


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
    checkpoint = load_latest(place / "ckpt")
    assert checkpoint is not None
    return {"first": first, "failed": failed, "third": third, "loaded": checkpoint.path, "from_rank": checkpoint.state["rank"]}


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
    checkpoint = load_latest(place / "ckpt", into=empty)
    equal = checkpoint is not None and all(torch.equal(checkpoint.state[name], state[name]) for name in state)
    no_target = caught(lambda: load_latest(place / "ckpt"))
    return {"no_state": no_state, "full": full, "equal": equal, "step": checkpoint and checkpoint.step, "no_target": no_target}


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
    checkpoint = load_latest(here)
    return {
        "step": checkpoint and checkpoint.step,
        "of": checkpoint and checkpoint.state["step"],
        "passed_over": checkpoint and checkpoint.passed_over,
    }


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
    """Have one rank be unable to load what all agreed on: none continues without it."""
    save({"weights": torch.ones(10)}, place / "ckpt", step=1)
    where = "cpu" if dist.get_rank() == 0 else "no-such-device"
    failed = caught(lambda: load_latest(place / "ckpt", map_location=where))
    checkpoint = load_latest(place / "ckpt")
    return {"failed": failed, "then": checkpoint and checkpoint.step, "error": CheckpointingError.__name__}


def _first_seen(place: Path) -> None:
    """Begin as a script does, with a load; from then on a rank that waits looks around after half a second."""
    assert load_latest(place / "ckpt") is None
    ranks.PATIENCE_S = 0.5


def _saved(place: Path, state: Any = 1) -> dict[str, Any]:  # noqa: ANN401 -- whatever torch.save takes
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        failed = caught(lambda: save({"weights": state}, place / "ckpt", step=1))
    return {"failed": failed, "warned": [str(row.message) for row in warned if row.category is RuntimeWarning]}


def _go_on(place: Path) -> None:
    """Stand at this line until rank 0 has given up."""
    _wait_for(place / "gave-up")


def rank_0_alone(place: Path) -> dict[str, Any]:
    """Save on rank 0 alone, while the others do something else that is in no call: nothing is proven."""
    _first_seen(place)
    if dist.get_rank():
        _go_on(place)
        return {}
    seen = _saved(place)
    (place / "gave-up").touch()
    return seen


def rank_late(place: Path) -> dict[str, Any]:
    """Come late on the last rank, by less than the time limit."""
    _first_seen(place)
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(2.5)
    return _saved(place)


def rank_in_a_collective(place: Path) -> dict[str, Any]:
    """Save on rank 0 alone; the others are in the next collective of all ranks."""
    _first_seen(place)
    if dist.get_rank() == 0:
        return _saved(place)
    return {"failed": caught(dist.barrier)}


def rank_in_another_call(place: Path) -> dict[str, Any]:
    """Save on rank 0 alone; the others load. Then all save together."""
    _first_seen(place)
    seen = _saved(place) if dist.get_rank() == 0 else {"failed": caught(lambda: load_latest(place / "ckpt"))}
    return {**seen, "then": save({"weights": 1}, place / "ckpt", step=2)}


def rank_dead(place: Path) -> dict[str, Any]:
    """Have the last rank be killed before the others save."""
    _first_seen(place)
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _saved(place)


class Slow:
    """A part of a state that takes longer to write than ranks wait for one that does not come."""

    def __reduce__(self) -> tuple[Callable[[int], int], tuple[int]]:
        """Take the time."""
        time.sleep(5)
        return int, (1,)


def rank_0_writes_long(place: Path) -> dict[str, Any]:
    """Save what rank 0 writes for longer than the group's time limit."""
    _first_seen(place)
    return _saved(place, Slow())


def _read_bytes() -> int:
    """Return how many bytes this process has read, from disks and from the page cache."""
    return int(Path("/proc/self/io").read_text().split()[1])


def read_once(place: Path) -> dict[str, Any]:
    """Load what was saved before on each rank in both forms of torch.save; count the bytes that each rank reads."""
    seen: dict[str, Any] = {}
    for name in ("zip", "legacy"):
        (path,) = (place / name).iterdir()
        state = torch.load(path)
        before = _read_bytes()
        loaded = load_latest(place / name)
        n_read = _read_bytes() - before
        assert loaded is not None
        equal = all(torch.equal(tensor, loaded.state["model"][key]) for key, tensor in state["model"].items())
        seen[name] = {"share": n_read / path.stat().st_size, "equal": equal, "step": loaded.state["step"]}
    return seen


def read_once_in_shards(place: Path) -> dict[str, Any]:
    """Save a state that all ranks have alike through DCP, load it into another one, and count the bytes that each rank reads."""
    state = {"model": {f"layer{number}": torch.arange(200_000.0) + number for number in range(10)}, "step": 7, "names": ["a", "b"]}
    path = Path(save(state, place / "ckpt", step=7, sharded=True))
    n_bytes = sum(file.stat().st_size for file in path.iterdir())
    into = {"model": {name: torch.zeros_like(tensor) for name, tensor in state["model"].items()}, "step": 0, "names": ["", ""]}  # type: ignore[attr-defined]
    before = _read_bytes()
    loaded = load_latest(place / "ckpt", into=into)
    n_read = _read_bytes() - before
    assert loaded is not None
    equal = all(torch.equal(tensor, loaded.state["model"][name]) for name, tensor in state["model"].items())  # type: ignore[attr-defined]
    in_place = all(loaded.state["model"][name] is tensor for name, tensor in into["model"].items())  # type: ignore[attr-defined]
    lacking = caught(lambda: load_latest(place / "ckpt", into={**into, "other": torch.zeros(3)}))
    return {
        "share": n_read / n_bytes, "equal": equal, "in_place": in_place, "step": loaded.state["step"], "names": loaded.state["names"],
        "lacking": lacking,
    }  # fmt: skip


def sent_in_vain(place: Path) -> dict[str, Any]:
    """Have one rank be unable to take what rank 0 sends, then rank 0 be unable to read; then load."""
    place = place / "zip"
    rank = dist.get_rank()
    not_taken = caught(lambda: load_latest(place, map_location="no-such-device" if rank == 1 else "cpu"))
    read = os.pread
    if rank == 0:
        broadcast.os.pread = _no_read  # type: ignore[attr-defined]
    not_read = caught(lambda: load_latest(place))
    os.pread = read
    loaded = load_latest(place)
    return {"not_taken": not_taken, "not_read": not_read, "then": loaded and loaded.step}


def sent(place: Path) -> dict[str, Any]:
    """Do one after the other what all ranks survive."""
    return {function.__name__: function(place) for function in (read_once, read_once_in_shards, sent_in_vain)}


def sent_to_the_dead(place: Path) -> dict[str, Any]:
    """Have the last rank be killed in the middle of what rank 0 sends."""
    next_piece, n_pieces = broadcast.SharedFile._next_piece, 0  # noqa: SLF001 -- the moment

    def killed(file: broadcast.SharedFile) -> None:
        nonlocal n_pieces
        n_pieces += 1
        if n_pieces == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        next_piece(file)

    if dist.get_rank() == dist.get_world_size() - 1:
        broadcast.SharedFile._next_piece = killed  # type: ignore[method-assign]  # noqa: SLF001 -- the moment
    return {"failed": caught(lambda: load_latest(place / "zip"))}


def _no_read(*_: int) -> bytes:
    raise OSError(5, "Input/output error")


def main() -> None:
    """Do it, and write down what was seen."""
    name, place = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT_S", "60"))))
    seen = globals()[name](place)
    (place / f"rank-{dist.get_rank()}.json").write_text(json.dumps(seen))
    if name not in APART:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
