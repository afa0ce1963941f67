"""A script that leaves out bad batches by worker.agree: counted while it runs, and stopped with more of them than the budget allows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.conftest import Supervised

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
