"""`supervise status --stacks` at a job that runs: from another process, again and again, and the job continues."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOBS = Path(__file__).parents[1] / "jobs"
pytestmark = pytest.mark.process


@pytest.mark.slow
def test_the_stack_of_each_rank_is_shown_while_the_job_continues(supervise: Callable[..., Supervised]) -> None:
    run = supervise(sys.executable, JOBS / "no_torch.py", "--steps=100000", "--step-ms=50", "--progress=progress")
    run.wait_for_step(2)
    (pid,) = run.rank_pids().values()
    for _ in range(2):
        shown = run.ask("status", "--stacks", "--rank", "0")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout.startswith("-- rank of this node, a look of ")
        assert f"process {pid} " in shown.stdout
        assert "no_torch.py:" in shown.stdout.partition("-- stack of rank 0, the innermost call first")[2]
    last_step = max(step for _, step in run.progress())
    run.wait_for_step(last_step + 2)
    other = run.ask("status", "--stacks", "--rank", "7")
    assert (other.returncode, "Name one of 0 with --rank" in other.stderr) == (64, True)
    run.signal(2)
    run.exit_code()
    ended = run.ask("status", "--stacks")
    assert (ended.returncode, "no rank runs" in ended.stderr) == (64, True)
