"""What a whole run leaves behind: see the table of this package."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.conftest import supervise  # noqa: F401  a fixture
from tests.jobs.light import IMPORT
from tests.known_defects import ONE_PASS, later, prepared
from tests.support.ports import answers, free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.conftest import Supervised

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(300)]
DECLARED = ("--checkpoints", "ckpt/step-*.pt", "--resume-args", "--resume {resume}")
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


@later(ONE_PASS)
def test_keep_removes_checkpoints_to_which_two_nodes_wrote(supervise: Callable[..., Supervised], tmp_path: Path) -> None:  # noqa: F811
    port, saved = free_port(), tmp_path / "ckpt"
    saved.mkdir()
    (tmp_path / "train.py").write_text(BOTH_WRITE.replace("CKPT", str(saved)))

    def start(node: int) -> Supervised:
        torchrun = ["torchrun", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=e2e", "--nnodes=2"]
        options = ["--keep", "2", "--checkpoints", f"{saved}/checkpoint-*", "--resume-args", "--resume {resume}"]
        quick = {"_SUPERVISE_TEST_INTERVALS": "0.04"}
        command = [*torchrun, "--nproc-per-node=1", tmp_path / "train.py"]
        return supervise(*command, options=options, place=tmp_path / f"node-{node}", **quick)

    runs = [start(0)]
    wait_for(lambda: answers(port), "node 0 to serve the rendezvous", 60, alive=runs[0].alive)
    runs.append(start(1))
    last = saved / "checkpoint-50"
    wait_for(lambda: len(list(last.glob("rng_state_*.pth"))) == 2, "the last save", 120, alive=lambda: all(run.alive() for run in runs))
    until = time.monotonic() + 30
    while len(list(saved.glob("checkpoint-*"))) > 2 and time.monotonic() < until:
        time.sleep(0.1)
    left = sorted(os.listdir(saved))  # noqa: PTH208
    (saved / "go-on").touch()
    prepared([run.exit_code() for run in runs] == [0, 0], runs[0].stderr)
    assert left == ["checkpoint-40", "checkpoint-50"]
