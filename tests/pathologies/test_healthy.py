"""What only looks as if it stood still is never called a hang, though each hang is to be ended and the limits are short."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.pathologies import hanging_jobs
from tests.pathologies.hanging_jobs import RESUMING, SOON, command, record_times, taken
from tests.support.faketime import faketime
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

#: Further words of the job, and shorter limits where its slow part is to pass them.
HEALTHY: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "evaluation_alone": (("--long-s=6",), {}),
    "slow_save": (("--long-s=5", "--at=152"), {}),
    "slow_load": (("--long-s=6",), {}),
    "long_step": (("--long-s=6", "--steps=4", "--save-every=2"), {"SUPERVISE_HANG_PHASE_S": "2"}),
    "inference": (("--steps=1500",), {"SUPERVISE_HANG_PHASE_S": "2"}),
}


@pytest.mark.parametrize("pathology", HEALTHY)
def test_a_healthy_job_is_never_called_hung(supervise: Callable[..., Supervised], pathology: str) -> None:
    words, limits = HEALTHY[pathology]
    run = supervise(*command(pathology, *words), options=[*RESUMING, "--on-hang", "restart"], **{**SOON, **limits})
    assert run.exit_code() == 0
    assert run.attempts() == 1
    assert not taken(run, "HangConfirmed")


def test_a_pause_of_the_supervisor_or_of_the_whole_job_is_no_hang(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*command("none", "--steps=700"), options=[*RESUMING, "--on-hang", "restart"], **SOON)
    run.wait_for_step(hanging_jobs.AT)
    for others in (run.leftovers, tuple):  # first as if the whole machine slept
        stopped = [run.process.pid, *others()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(8)  # four times the limit: the time itself is the pathology
        for pid in reversed(stopped):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        step = max(step for _, step in run.progress())
        run.wait_for_step(step + 20)
    assert run.exit_code() == 0
    assert run.attempts() == 1
    assert not taken(run, "HangConfirmed")


def test_a_clock_that_jumps_forth_and_back_is_no_hang(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "clock").write_text("+0\n")
    calm = {**SOON, "SUPERVISE_HANG_TRAIN_S": "10"}  # a machine with other work must not raise a suspicion
    run = supervise(*command("none", "--steps=500"), options=[*RESUMING, "--on-hang", "restart"], **calm, **faketime(tmp_path))
    run.wait_for_step(hanging_jobs.AT)
    for number, jump in enumerate(("+3600", "-3600"), 1):
        (tmp_path / "clock").write_text(f"{jump}\n")
        run.wait_for_step(hanging_jobs.AT + 150 * number)
    assert run.exit_code() == 0
    assert run.attempts() == 1
    jumped = [round((after - before) / 3600) for before, after in pairwise(record_times(run))]
    assert [hours for hours in jumped if hours] == [1, -2]
    assert not taken(run, "HangSuspected")


UPLOADS = """
import signal, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter])
for _ in range(80):
    parameter.grad = torch.ones(4)
    dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(0.05)
if dist.get_rank() == 0:
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
    time.sleep(120)  # until the signal
"""


def test_a_rank_that_ended_in_order_is_not_missed_by_an_uploading_one(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UPLOADS)
    run = supervise("torchrun", "--standalone", "--nproc-per-node=2", "train.py", options=["--on-hang", "auto"], **SOON)
    wait_for(lambda: taken(run, "HangConfirmed"), "the report that it stands still", 90, alive=run.alive)
    os.kill(run.rank_pids()[0], signal.SIGUSR1)
    assert run.exit_code() == 0
    assert run.attempts() == 1
    kinds = {event["hang"]["kind"] for event in taken(run, "HangConfirmed")}
    assert kinds == {"still"}, "that it stands still is reported; nobody waits for the rank that is gone"
