"""The main job, end to end: what kills a rank does not kill the training, and what cannot be helped is not tried again."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_standby import logged, ready, starts
from tests.support import preloaded
from tests.support.supervised import WAITS
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOBS = Path(__file__).parents[1] / "jobs"
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=2"]
DDP = [*TORCHRUN, str(JOBS / "ddp_small.py"), "--light"]
NO_TORCH = [*TORCHRUN, str(JOBS / "no_torch.py")]
RESUMING = ["--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}"]

pytestmark = pytest.mark.process


def lines_of(rank: int, text: str) -> list[str]:
    """Return the step lines of one rank, with their ends."""
    return [line for line in text.splitlines(keepends=True) if line.startswith(f"rank {rank} ")]


def test_kill_9_of_a_rank_recovers_by_standbys_and_the_model_is_bit_equal_to_an_uninterrupted_one(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    files = ["--digest=digest", "--progress=progress", "--pids=pids"]
    job = [*DDP, "--steps=60", "--step-ms=20", "--hold-at=40", "--save-every=5", *files]
    whole = tmp_path / "digest"
    done = preloaded.run(str(JOBS / "ddp_small.py"), "--light", "--steps=60", f"--digest={whole}", ranks=2)
    assert done.returncode == 0, done.stderr

    run = supervise(*job, options=[*RESUMING, "--standby", "on"], place=tmp_path / "cut")
    run.wait_for_step(22)
    waiting = ready(run, 1)
    wait_for(lambda: run.status()["standby"]["pids"] == waiting, "status to show them", alive=run.alive)  # the log may be ahead
    os.kill(run.rank_pids()[1], signal.SIGKILL)
    assert {pid for _, pid in starts(run, 4)[2:]} == set(waiting)
    (run.place / "go-on").touch()
    assert run.exit_code() == 0
    assert (run.place / "digest").read_bytes() == whole.read_bytes()
    resumed = run.wait_for_line(r"resumed at step (\d+) from \S*ckpt/step-(\d+)\.pt")
    assert int(resumed[1]) == int(resumed[2]) >= 20
    steps_of_rank_0 = [step for rank, step in run.progress() if rank == 0]
    assert steps_of_rank_0.count(int(resumed[1]) + 1) in (1, 2)  # made again only where it was made after the checkpoint
    assert steps_of_rank_0.count(1) == 1  # nothing from scratch
    [used] = logged(run, "standby.used")
    assert (used["attempt"], used["ranks"], used["cold"]) == (2, [0, 1], "")
    start = run.status()["start"]
    assert (start["attempt"], start["after"], start["trained"]) == (2, "failure", True)
    known = ["detect", "teardown", "decision", "selection", "preparation", "rendezvous", "start", "import", "init", "setup", "load"]
    assert [*start["parts"]] == [*known, "first_step"]
    assert sum(start["parts"].values()) == pytest.approx(start["total_s"], abs=0.01)
    run.wait_for_nothing_left()


@pytest.mark.slow  # test_output.py shows it of a plain script
def test_a_healthy_job_shows_the_bytes_that_torchrun_shows(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    job = [*NO_TORCH, "--steps=30", "--step-ms=2", "--print-steps"]
    plain = tmp_path / "plain"
    plain.mkdir()
    run = supervise(*job)
    assert run.exit_code() == 0
    shown = subprocess.run(job, cwd=plain, env=run.environment, check=True, capture_output=True, text=True)  # noqa: S603
    for rank in (0, 1):  # the ranks' lines mix as they come; each rank's own keep their order
        assert lines_of(rank, run.stdout) == lines_of(rank, shown.stdout)
    assert len(run.stdout) == len(shown.stdout)
    our_lines = [line for line in run.stderr.splitlines() if line.startswith("supervise: ")]
    of_job = [line for line in our_lines if not line.endswith(WAITS)]  # a machine that is busy with its disk makes the start wait for it
    assert len(of_job) == 5, our_lines  # four at the start, one at the end
    assert [line for line in run.stderr.splitlines() if line not in our_lines] == shown.stderr.splitlines()
