"""Two nodes on loopback that share the directories of state and checkpoints: each checkpoint is verified and sent by one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.config.intervals import FACTOR_VARIABLE
from tests.jobs.light import IMPORT
from tests.support.ports import answers, free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised, Surroundings

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
#: Two ranks save as HF Trainer does: rank 0 the model and the state, each rank its own random state. At the end it waits for a word.
BOTH_WRITE = f"""{IMPORT}
import json, os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, model = dist.get_rank(), torch.nn.Linear(4, 4)
optimizer = light_sgd(torch, model.parameters())
for step in range(1, 51):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step % 10 == 0:
        place = f"CKPT/checkpoint-{{step}}"
        if rank == 0:
            os.makedirs(place)
        dist.barrier()
        if rank == 0:
            torch.save(model.state_dict(), place + "/pytorch_model.bin")
            torch.save(optimizer.state_dict(), place + "/optimizer.pt")
            torch.save({{"last_epoch": step}}, place + "/scheduler.pt")
            with open(place + "/trainer_state.json", "w") as file:
                json.dump({{"global_step": step, "epoch": 1.0, "log_history": []}}, file)
        torch.save({{"python": step, "cpu": torch.get_rng_state()}}, f"{{place}}/rng_state_{{rank}}.pth")
        dist.barrier()
        time.sleep(1.0)
while not os.path.exists("CKPT/go-on"):
    time.sleep(0.1)
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
        runs_of[path.name.partition("_")[0]].add(path.parts[-6])  # <job>/<run>/attempt-<n>/step-<n>/<nonce>/data/<file>
    assert [len(names) for names in runs_of.values()] == [1, 1]
    assert runs_of["rank0"] != runs_of["rank1"], "each by the node whose rank saved it"


def test_keep_removes_checkpoints_to_which_two_nodes_wrote(
    supervise: Callable[..., Supervised], surroundings: type[Surroundings], tmp_path: Path
) -> None:
    """Each node's rank saves a file of every checkpoint, so that neither saw all of it."""
    port, saved, state = free_port(), tmp_path / "ckpt", tmp_path / "state"
    for directory in (saved, state):
        directory.mkdir()
    (tmp_path / "train.py").write_text(BOTH_WRITE.replace("CKPT", str(saved)))

    def start(node: str) -> Supervised:
        place = tmp_path / node
        place.mkdir()
        (place / "state").symlink_to(state)
        torchrun = ["torchrun", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=e2e", "--nnodes=2"]
        options = ["--keep", "2", "--checkpoints", f"{saved}/checkpoint-*", "--resume-args", "--resume {resume}"]
        command = [*torchrun, "--nproc-per-node=1", "--local-addr=127.0.0.1", str(tmp_path / "train.py")]
        return supervise(*command, options=options, place=place, around=surroundings(prefix=(*NAMED, node)), **{FACTOR_VARIABLE: "0.04"})

    runs = [start("first")]
    wait_for(lambda: answers(port), "the first node to serve the rendezvous", 60, alive=runs[0].alive)
    runs.append(start("second"))

    def are_alive() -> bool:
        return all(run.alive() for run in runs)

    last = saved / "checkpoint-50"
    wait_for(lambda: len(list(last.glob("rng_state_*.pth"))) == 2, "the last save", 120, alive=are_alive)
    wait_for(lambda: len(list(saved.glob("checkpoint-*"))) <= 2, "the older ones to go", 60, alive=are_alive)
    left = sorted(path.name for path in saved.iterdir())
    (saved / "go-on").touch()
    assert [run.exit_code(60) for run in runs] == [0, 0]
    assert left == ["checkpoint-40", "checkpoint-50"]
