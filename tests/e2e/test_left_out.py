"""A script that leaves out bad batches by worker.agree: counted while it runs, and stopped with more of them than the budget allows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

pytestmark = pytest.mark.process

ALONE = """
import time
from pathlib import Path
from supervisor import worker
for step in range(1, 40):
    worker.heartbeat(step)
    worker.agree(step % 2 == 0, "the loss is nan")
    while step == 3 and not Path("go").exists():
        time.sleep(0.02)
"""
TOGETHER = """
import torch.distributed as dist
from supervisor import worker
dist.init_process_group("gloo")
for step in range(1, 40):
    worker.heartbeat(step)
    worker.agree(step % 5 or dist.get_rank() != 1, "OSError: no such sample: 7.jpg")
"""

SHARDED = """
import os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from supervisor import worker

dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["SUPERVISE_JOB_ATTEMPT"])

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.fails = False

    def forward(self, batch):
        if self.fails:
            raise ValueError("shapes do not match")
        return self.linear(batch)

torch.manual_seed(0)
model = nn.Sequential(Layer(), Layer())
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
left_out = []
for step in range(1, 13):
    worker.heartbeat(step)
    model[0].fails = attempt == 1 and rank == 1 and step == 8
    loss = model(torch.randn(4, 8)).square().mean() * (float("nan") if rank == 0 and step == 3 else 1.0)
    if not worker.agree(bool(loss.isfinite()), "the loss is not finite"):
        left_out.append(step)
        optimizer.zero_grad()
        continue
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("left out", left_out, flush=True)
"""


def test_batches_that_are_left_out_are_counted_and_stop_the_run_when_they_are_too_many(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(ALONE)
    run = supervise(sys.executable, "train.py", options=["--set", "guard.skips=3"])
    wait_for(lambda: run.status().get("left_out") == 2, "two batches in status", 60, alive=run.alive)
    run.wait_for_line(r"all ranks leave out a batch \(2 of 3 in 1000 steps\) at call 3 of worker.agree by rank 0: the loss is nan")
    (tmp_path / "go").touch()
    assert run.exit_code() == 65
    assert run.attempts() == 1
    assert "more batches are bad than guard.skips allows" in run.stderr
    assert "nan_loss" in run.journal()


@pytest.mark.slow
def test_ranks_that_leave_out_too_many_stop_as_one_with_rank_and_reason(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TOGETHER)
    run = supervise("torchrun", "--nproc-per-node=2", "train.py", options=["--set", "guard.skips=2"])
    assert run.exit_code(120) == 65
    assert run.attempts() == 1
    assert "by rank 1: OSError: no such sample: 7.jpg" in run.stderr
    assert "data_error" in run.journal()


@pytest.mark.slow
def test_with_fsdp_a_nan_is_left_out_and_an_exception_in_a_forward_pass_that_communicates_restarts(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SHARDED)
    run = supervise("torchrun", "--nproc-per-node=2", "train.py", options=["--resumes-itself"])
    assert run.exit_code(180) == 0
    assert run.attempts() == 2
    assert run.stdout.count("left out [3]") == 2
    assert "rank 1" in run.stderr
    assert "ValueError: shapes do not match" in run.stderr
