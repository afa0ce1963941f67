"""How a job ends: exit codes, signals to `supervise`, and what may and may not be left behind."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.job.identity import job_dir_path
from tests.e2e.untouched import assert_untouched, listing, moved
from tests.jobs.light import IMPORT
from tests.support.ports import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOBS = Path(__file__).parents[1] / "jobs"
PLAIN = [sys.executable, str(JOBS / "no_torch.py")]
LONG = ["--steps=100000", "--step-ms=20", "--progress=progress", "--pids=pids"]
#: Twenty steps, and one save of 12 MiB at the end.
ONE_SAVE = f"""{IMPORT}
import os, torch
model = torch.nn.Linear(2, 2)
optimizer = light_sgd(torch, model.parameters())
for step in range(20):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
os.makedirs("ckpt", exist_ok=True)
torch.save({{"step": 20, "weights": torch.rand(12 << 18)}}, "ckpt/step-000020.pt")
"""

pytestmark = pytest.mark.process


def is_sleeping(pid: int) -> bool:
    """Return whether the daemon that a job started (it execs sleep) is still there."""
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    except OSError:
        return False


def daemon_of(run: Supervised) -> int:
    """Return the pid of the daemon that rank 0 started with --daemon=daemon."""
    return int((run.place / "daemon").read_text().splitlines()[0])


@pytest.mark.slow
def test_a_plain_script_that_leaves_with_a_code_beyond_63_gives_1(supervise: Callable[..., Supervised]) -> None:
    """Under torchrun test_decisions.py has one of each kind."""
    run = supervise(*PLAIN, "--fail-rank=0", "--fail-how=exit:255", "--pids=pids")
    assert run.exit_code() == 1
    assert "exited with code 255" in run.stderr  # the true code, whatever ours is
    run.wait_for_nothing_left()


#: Our own process alone: a bug in the worker that selects a checkpoint for the second attempt.
BUG = """
import sys

if sys.orig_argv[1:2] and sys.orig_argv[1].endswith("/bin/supervise"):
    from supervisor.checkpoints.job import JobCheckpoints

    select = JobCheckpoints.select

    def fails(self, t, attempt, *rest, **more):
        if attempt:
            raise RecursionError("maximum recursion depth exceeded")
        return select(self, t, attempt, *rest, **more)

    JobCheckpoints.select = fails
"""


def test_a_bug_in_a_worker_of_ours_ends_the_run_with_70_and_leaves_nothing(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BUG)
    run = supervise(
        *PLAIN, *LONG, "--fail-rank=0", "--fail-at-step=3", "--fail-how=kill", PYTHONPATH=str(tmp_path / "site"), TMPDIR=str(tmp_path)
    )
    assert run.exit_code() == 70
    assert "internal error (please report): RecursionError: maximum recursion depth exceeded; the traceback is in " in run.stderr
    run.wait_for_nothing_left()


@pytest.mark.slow
@pytest.mark.bench
def test_kill_9_of_supervise_leaves_nothing(supervise: Callable[..., Supervised]) -> None:
    """Under torchrun test_survival.py shows it, and the start after it."""
    run = supervise(*PLAIN, *LONG, "--ignore-term", "--daemon=daemon")
    run.wait_for_step(1)
    daemon = daemon_of(run)
    assert is_sleeping(daemon)
    run.signal(signal.SIGKILL)
    run.exit_code()
    run.wait_for_nothing_left(deadline_s=5)
    assert not is_sleeping(daemon)


@pytest.mark.slow
def test_a_daemon_lives_on_after_a_job_that_ended_well(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*PLAIN, "--steps=3", "--daemon=daemon")
    assert run.exit_code() == 0
    try:
        assert is_sleeping(daemon_of(run))
    finally:
        os.kill(daemon_of(run), signal.SIGKILL)


@pytest.mark.slow  # test_signals.py has that which is marked detached
def test_after_a_failure_a_daemon_is_ended(supervise: Callable[..., Supervised]) -> None:
    ended = supervise(*PLAIN, "--daemon=daemon", "--fail-rank=0", "--fail-how=exit:3")
    assert ended.exit_code() == 3
    assert not is_sleeping(daemon_of(ended))


def test_a_second_supervisor_of_the_job_leaves_and_names_the_first_whose_ranks_save_at_term(supervise: Callable[..., Supervised]) -> None:
    first = supervise(*PLAIN, *LONG, "--save-on-term")
    first.wait_for_step(3)
    second = first.ask_again("--", *PLAIN, "--steps=1")
    assert second.returncode == 78
    assert str(first.process.pid) in second.stderr
    assert first.alive()
    first.signal(signal.SIGTERM)
    assert first.exit_code(deadline_s=30) == 143
    assert list((first.place / "ckpt").glob("step-*.pt"))
    first.wait_for_nothing_left()


def test_a_job_with_only_torn_checkpoints_stops_with_65_and_touches_none(supervise: Callable[..., Supervised]) -> None:
    run = supervise(
        *PLAIN,
        *LONG,
        "--save-every=5",
        options=["--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}"],
    )
    run.wait_for_step(13)
    pid = run.rank_pids()[0]
    os.kill(pid, signal.SIGSTOP)  # nothing is saved any more
    wait_for(lambda: "(stopped)" in Path(f"/proc/{pid}/status").read_text(), "the stop")
    checkpoints = sorted((run.place / "ckpt").glob("*.pt"))
    for checkpoint in checkpoints:
        os.truncate(checkpoint, checkpoint.stat().st_size // 2)
    before = listing(run.place / "ckpt")
    os.kill(pid, signal.SIGKILL)
    assert run.exit_code() == 65
    assert run.attempts() == 1
    assert moved(run) == []
    assert_untouched(run, before)


#: A launcher of one process: it gives no RANK, waits, and fails as its child did (accelerate's simple_launcher).
LAUNCHER = "import subprocess, sys\nsubprocess.run([sys.executable, *sys.argv[1:]], check=True)\n"


@pytest.mark.slow
def test_a_program_under_a_launcher_that_fails_before_its_first_step_is_tried_once(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    launcher, script = tmp_path / "accelerate", tmp_path / "train.py"
    launcher.write_text(LAUNCHER)
    script.write_text("import flash_attn_turbo\n")
    run = supervise(sys.executable, str(launcher), str(script))
    assert run.exit_code() == 1
    assert run.attempts() == 1
    assert "ModuleNotFoundError: No module named 'flash_attn_turbo'" in " ".join(run.stderr.split())
    assert "phase import" in run.stderr


#: A launcher of two ranks, as accelerate's and deepspeed's are; each rank writes down its pid and waits.
LAUNCHER_OF_TWO = """
import os, subprocess, sys
world = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
ranks = [subprocess.Popen([sys.executable, sys.argv[1]], env={**world, "RANK": r, "LOCAL_RANK": r}) for r in "01"]
sys.exit(max(rank.wait() for rank in ranks))
"""
WAITING_RANK = """
import os, pathlib, time
pathlib.Path("half").mkdir(exist_ok=True)
mine = pathlib.Path("half") / os.environ["RANK"]
mine.write_text(str(os.getpid()))
mine.rename("rank-" + os.environ["RANK"])
while not pathlib.Path("go-on").exists():
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_the_ranks_that_a_command_starts_by_itself_are_the_ranks_of_the_attempt(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    launcher, script = tmp_path / "launch.py", tmp_path / "train.py"
    launcher.write_text(LAUNCHER_OF_TWO)
    script.write_text(WAITING_RANK)
    run = supervise(sys.executable, str(launcher), str(script))
    wait_for(lambda: all((run.place / f"rank-{rank}").exists() for rank in (0, 1)), "both ranks", alive=run.alive)
    pids = [int((run.place / f"rank-{rank}").read_text()) for rank in (0, 1)]
    wait_for(lambda: len(run.status()["ranks"]) == len(pids), "status to show both", alive=run.alive)
    seen = run.status()
    assert [(row["rank"], row["local_rank"], row["pid"]) for row in seen["ranks"]] == [(rank, rank, pid) for rank, pid in enumerate(pids)]
    assert seen["world_size"] == len(pids)
    shown = run.ask_again("status").stdout
    assert re.findall(r"(?m)^rank (\d) +(\d+) ", shown) == [(str(rank), str(pid)) for rank, pid in enumerate(pids)]
    (run.place / "go-on").touch()
    assert run.exit_code() == 0


@pytest.mark.slow
def test_accelerate_is_such_a_launcher(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nimport flash_attn_turbo\n")
    run = supervise("accelerate", "launch", "--cpu", "--num_processes", "1", str(script))
    assert run.exit_code() == 1
    assert run.attempts() == 1
    assert "install what provides flash_attn_turbo" in run.stderr


@pytest.mark.slow
def test_the_last_line_says_that_the_last_checkpoint_is_not_in_the_mirror(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    slow = {"SUPERVISE_CHECKPOINTS_FINISH_S": "1", "SUPERVISE_CHECKPOINTS_BANDWIDTH_MIB_S": "1"}
    options = ["--checkpoints", "ckpt/step-*.pt", "--resume-args", "--resume {resume}", "--mirror", str(mirror)]
    run = supervise(sys.executable, "-c", ONE_SAVE, options=options, **slow)
    assert run.exit_code() == 0, run.stderr
    assert not list(mirror.rglob("manifest.json")), "it is in the mirror"
    last = run.stderr.splitlines()[-1]
    assert "done" in last
    assert f"0 of 1 saves are in {mirror}; only here: {tmp_path}/ckpt/step-000020.pt" in last


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_start_that_restores_nothing_leaves_nothing_in_shared_memory(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = supervise(
        sys.executable,
        "-c",
        "",
        options=["--checkpoints", "ckpt/step-*.pt", "--resume-args", "--resume {resume}", "--mirror", "s3://bucket"],
        AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{free_port()}",
        AWS_ACCESS_KEY_ID="key",
        AWS_SECRET_ACCESS_KEY="secret",  # noqa: S106  of no server
        AWS_DEFAULT_REGION="us-east-1",
    )
    assert run.exit_code(200) == 75, run.stderr
    left = [place for state in tmp_path.glob("state/e2e/**/") if (place := job_dir_path(state)).exists()]
    for place in left:
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
    assert left == []
