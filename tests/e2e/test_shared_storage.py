"""Two nodes on loopback that share the directories of state and checkpoints: each checkpoint is verified and sent by one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.config.intervals import FACTOR_VARIABLE
from tests.support.ports import answers, free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.conftest import Supervised, Surroundings

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
STEPS = 4
#: A node of another name.
NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"')
#: Each rank saves a file of its own; that of rank 0 is written by a plain `open`, so that no hook sees it.
TRAIN = f"""
import io, os, time, torch
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
for step in range(1, {STEPS} + 1):
    path, content = f"../ckpt/rank{{rank}}_step_{{step}}.pt", {{"step": step, "w": torch.randn(100_000)}}
    if rank:
        torch.save(content, path)
    else:
        raw = io.BytesIO()
        torch.save(content, raw)
        with open(path, "wb") as file:
            file.write(raw.getvalue())
    torch.distributed.barrier()
    time.sleep(2)
torch.distributed.barrier()
"""
#: A file system without locks, as some NFS and FUSE mounts are: for every process of a run.
NO_LOCKS = """
import errno, fcntl
def flock(_fd, _how):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = flock
"""


@pytest.mark.parametrize("locks", ["with locks", "without locks"])
def test_each_checkpoint_is_verified_and_sent_by_one_node(
    supervise: Callable[..., Supervised], surroundings: type[Surroundings], tmp_path: Path, locks: str
) -> None:
    mirror, state, port = tmp_path / "mirror", tmp_path / "state", free_port()
    for directory in (mirror, state, tmp_path / "ckpt", tmp_path / "python"):
        directory.mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    environment = {FACTOR_VARIABLE: "0.04"}
    if locks == "without locks":
        (tmp_path / "python" / "sitecustomize.py").write_text(NO_LOCKS)
        environment["PYTHONPATH"] = str(tmp_path / "python")
    options = [
        "--checkpoints",
        f"{tmp_path}/ckpt/*.pt",
        "--mirror",
        str(mirror),
        "--resumes-itself",
    ]
    torchrun = ["torchrun", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=two"]

    def start(node: str) -> Supervised:
        place = tmp_path / node
        place.mkdir()
        (place / "state").symlink_to(state)
        words = [*torchrun, "--local-addr=127.0.0.1", str(tmp_path / "train.py")]
        return supervise(*words, options=options, place=place, around=surroundings(prefix=(*NAMED, node)), **environment)

    runs = [start("first")]
    wait_for(lambda: answers(port), "the first node to serve the rendezvous", 60, alive=runs[0].alive)
    runs.append(start("second"))
    assert [run.exit_code(180) for run in runs] == [0, 0]
    sent = [path.name for path in mirror.rglob("data/*")]
    assert sorted(sent) == sorted(f"rank{rank}_step_{step}.pt" for rank in (0, 1) for step in range(1, STEPS + 1)), "each once"
    runs_of: dict[str, set[str]] = {"rank0": set(), "rank1": set()}
    for path in mirror.rglob("data/*"):
        runs_of[path.name.partition("_")[0]].add(path.parts[-4])  # <job>/<run>/<checkpoint>/data/<file>
    assert [len(found) for found in runs_of.values()] == [1, 1]
    assert runs_of["rank0"] != runs_of["rank1"], "each by the node whose rank saved it"
