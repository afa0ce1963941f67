"""What is done with the time that a scheduler leaves: a script that asks saves and continues later, another is stopped in good time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.figures import BUSY, Figures, within
from tests.support.supervised import clean_environment
from tests.support.waiting import wait_for, words_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

ROOT = Path(__file__).parents[2]
JOB = str(ROOT / "tests" / "jobs" / "saves_on_request.py")
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=2", JOB]
#: The script imports supervisor.worker, as one that is installed beside supervise would.
PATHS = {"PYTHONPATH": str(ROOT)}
LEFT = {"SUPERVISE_STOP_LEFT_S": "10"}
OPTIONS = ["--checkpoints", "ckpt/step-*.pt", "--resume-args", "--resume {resume}"]

pytestmark = pytest.mark.process


#: No torch, no ranks: a script that saves by means of its own, says so, and ends well by itself, or continues.
PLAIN = """
import pathlib, sys, time
from supervisor import worker
for step in range(100_000):
    time.sleep(0.02)
    if worker.should_save():
        pathlib.Path("saved").write_text(str(step))
        if sys.argv[1] == "ends":
            sys.exit(0)
        worker.saved()
"""


def wait_for_steps(run: Supervised, step: int) -> None:
    """Await that some rank made `step`."""
    wait_for(lambda: any(int(number) >= step for _, number in words_of(run.place / "steps")), f"step {step}", 60, alive=run.alive)


def wait_for_ask(run: Supervised) -> None:
    """Await that the supervisor knows that the script asks."""
    wait_for(lambda: '"event":"SaveOnRequestSeen"' in run.journal(), "the script asks", 60, alive=run.alive)


def seen_requests(run: Supervised) -> list[tuple[int, int]]:
    """Return the (rank, step) pairs at which ranks saw the save request."""
    return sorted((int(rank), int(step)) for rank, step in words_of(run.place / "told"))


@pytest.mark.slow
@pytest.mark.bench
def test_two_ranks_save_at_one_step_within_10_s_of_usr1_and_the_next_start_continues(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    left = LEFT if Figures.asserted else {name: str(BUSY * int(seconds)) for name, seconds in LEFT.items()}
    run = supervise(*TORCHRUN, options=OPTIONS, **PATHS, **left)
    wait_for_ask(run)
    run.signal(signal.SIGUSR1)
    began = time.monotonic()
    assert run.exit_code(deadline_s=10) == 75
    assert within(10, since=began)
    ((_, step), (_, other)) = seen_requests(run)
    assert step == other
    assert (tmp_path / "ckpt" / f"step-{step:08d}.pt").exists()  # its name came a while after torch.save was over
    assert run.journal().count('"event":"Saved"') == 1
    assert run.status()["incidents"] == 0

    again = supervise(*TORCHRUN, options=OPTIONS, **PATHS, **left)
    wait_for(lambda: len(words_of(tmp_path / "started")) == 4, "the second start", 60, alive=again.alive)
    assert {int(at) for _, at in words_of(tmp_path / "started")[2:]} == {step}
    assert again.journal().count('"kind":"run"') == 2
    assert "continues with run" in again.stderr
    wait_for(lambda: again.journal().count('"event":"SaveOnRequestSeen"') == 2, "the second attempt asks", 60, alive=again.alive)
    stopped = again.ask("stop")  # the same contract by another word
    assert (stopped.returncode, again.exit_code(deadline_s=15)) == (0, 75)
    assert stopped.stdout.startswith("job e2e: stopped at ")
    assert stopped.stdout.splitlines()[0].endswith(" (exit code 75, the next start continues the run)")
    assert f" && supervise --job e2e --state-dir {again.state} " in stopped.stdout.partition("start it again: cd ")[2]
    first, second, third, fourth = sorted(at for _, at in seen_requests(again))
    assert first == second == step < third == fourth


@pytest.mark.slow
def test_a_script_that_knows_nothing_is_stopped_in_good_time(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*TORCHRUN, "--never-ask", **PATHS, **LEFT)
    wait_for_steps(run, 5)
    began = time.monotonic()
    run.signal(signal.SIGUSR2)
    assert run.exit_code(deadline_s=10) == 75
    assert time.monotonic() - began < 10
    assert seen_requests(run) == []
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_script_that_asks_and_never_gets_to_its_save_is_stopped_before_the_time_is_over(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*TORCHRUN, "--save-ms=60000", **PATHS, **LEFT)
    wait_for_ask(run)
    began = time.monotonic()
    run.signal(signal.SIGTERM)
    assert run.exit_code(deadline_s=12) == 143
    assert 5.5 < time.monotonic() - began < 10
    assert "no checkpoint was saved before the deadline" in run.stderr
    assert len(seen_requests(run)) == 2


@pytest.mark.parametrize(("then", "signum"), [("ends", signal.SIGUSR1), pytest.param("continues", signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_plain_script_that_saves_by_itself_is_to_continue_later(
    supervise: Callable[..., Supervised], tmp_path: Path, then: str, signum: int
) -> None:
    run = supervise("python", "-c", PLAIN, then, **PATHS)
    wait_for_ask(run)
    run.signal(signum)
    assert run.exit_code(deadline_s=10) == 75
    assert (tmp_path / "saved").exists()
    assert run.status()["incidents"] == 0
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_person_is_not_kept_waiting_for_a_save(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = supervise("python", "-c", PLAIN, "ends", **PATHS)
    wait_for_ask(run)
    run.signal(signal.SIGINT)
    assert run.exit_code(deadline_s=10) == 130
    assert not (tmp_path / "saved").exists()


@pytest.mark.slow
def test_a_notice_that_reaches_the_ranks_too_kills_no_script_that_asks(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = supervise("python", "-c", PLAIN, "ends", **PATHS, **LEFT)
    wait_for_ask(run)
    os.kill(run.rank_pids()[0], signal.SIGUSR1)  # as Slurm does without B:
    run.signal(signal.SIGUSR1)
    assert run.exit_code(deadline_s=10) == 75
    assert (tmp_path / "saved").exists()


#: One rank that asks, and also handles TERM by itself: it saves and leaves as a shell would.
OWN_HANDLER = """
import os, pathlib, signal, sys, time, torch
from supervisor import worker
step = 0
def at_term(signum, frame):
    path = pathlib.Path("ckpt", f"step-{step:08d}.pt")
    torch.save({"step": step}, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").rename(path)
    sys.exit(143)
pathlib.Path("ckpt").mkdir(exist_ok=True)
signal.signal(signal.SIGTERM, at_term)
while True:
    step += 1
    time.sleep(0.01)
    if worker.should_save():
        time.sleep(1.0)  # it would save now, and has no time to
    worker.heartbeat(step)
"""


@pytest.mark.slow
def test_under_slurm_a_rank_that_saves_by_its_own_term_handler_continues_later(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    tool = tmp_path / "bin" / "scontrol"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nsleep 0.6\n")
    tool.chmod(0o755)
    script = tmp_path / "train.py"
    script.write_text(OWN_HANDLER)
    path = f"{tool.parent}:{clean_environment()['PATH']}"
    run = supervise("python", str(script), options=OPTIONS, PATH=path, SLURM_JOB_ID="77", **PATHS)
    wait_for_ask(run)
    (rank,) = run.rank_pids().values()
    os.kill(rank, signal.SIGTERM)  # as Slurm does: every process of the step
    run.signal(signal.SIGTERM)
    assert run.exit_code() == 75
    assert len(list((tmp_path / "ckpt").glob("step-*.pt"))) == 1
    assert "given up" not in run.stderr
