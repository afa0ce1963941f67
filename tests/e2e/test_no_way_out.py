"""Situations that have no way on but the one that somebody thought of: each must end by itself, and rightly."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_survival import children_of, stalling
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

pytestmark = pytest.mark.process
FOREVER = "import pathlib, time; pathlib.Path('began').touch(); time.sleep(600)"


def guardian_of(run: Supervised) -> int:
    """Return the guardian's pid."""
    (guardian,) = (pid for pid in children_of(run.process.pid) if b"guardian" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return guardian


def begun(supervise: Callable[..., Supervised], place: Path, *options: str) -> Supervised:
    """Start a job that sleeps, and await it."""
    run = supervise("python", "-c", FOREVER, options=options)
    wait_for((place / "began").exists, "the job", alive=run.alive)
    run.rank_pids()
    return run


@pytest.mark.slow
def test_a_guardian_that_does_not_answer_cannot_hold_up_the_end(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = begun(supervise, tmp_path, "--set", "stop.deadline_s=1")
    os.kill(guardian_of(run), signal.SIGSTOP)
    for _ in range(3):
        run.signal(signal.SIGTERM)
        time.sleep(0.3)  # beyond what counts as one burst
    assert run.exit_code(deadline_s=25) == 143
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_an_emptied_directory_in_memory_costs_only_the_heartbeats(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = begun(supervise, tmp_path)
    (scratch,) = {line.partition('"scratch":"')[2].partition('"')[0] for line in run.journal().splitlines() if '"scratch":"' in line}
    shutil.rmtree(scratch)
    (tmp_path / "began").unlink()
    os.kill(run.rank_pids()[0], signal.SIGKILL)
    wait_for((tmp_path / "began").exists, "the second attempt", alive=run.alive)
    run.signal(signal.SIGTERM)
    assert run.exit_code() == 143
    assert "internal error" not in run.stderr


def test_a_start_that_failed_early_is_not_continued_by_the_next(supervise: Callable[..., Supervised]) -> None:
    job = ["sh", "-c", "exit 42"]  # without heartbeats nobody knows whether it is at its beginning
    spent = supervise(*job, _SUPERVISE_TEST_INTERVALS="0.04")
    assert spent.exit_code() == 42
    assert spent.attempts() == 2
    assert "it is the program's own answer" in " ".join(spent.stderr.split())
    assert supervise(*job, SUPERVISE_ALERTS_HEARTBEAT_URL="gopher://nowhere").exit_code() == 78
    fresh = supervise(*job, _SUPERVISE_TEST_INTERVALS="0.04")
    assert fresh.exit_code() == 42
    assert "continues with" not in fresh.stderr
    assert "Restarting as attempt 2" in fresh.stderr


def test_a_stop_while_the_journal_is_waited_for_comes_before_the_start(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "stall").touch()
    run = supervise("python", "-c", FOREVER, PATH=stalling(tmp_path))
    run.wait_for_line("a plain command")
    wait_for((tmp_path / "stalled").exists, "the journal's first fsync", alive=run.alive)
    run.signal(signal.SIGTERM)
    # it may come before a rank was asked for at all: then nobody is asked to end
    wait_for(lambda: not run.alive() or "SIGTERM: ranks are asked to end" in run.stderr, "the stop to be heard")
    (tmp_path / "stall").unlink()
    assert run.exit_code(deadline_s=10) == 143
    assert not (tmp_path / "began").exists()
    run.wait_for_nothing_left()


def test_an_interpreter_without_torch_is_one_attempt_and_a_short_message(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)  # noqa: S603  ours
    run = supervise(str(bare / "bin" / "python"), "-m", "torch.distributed.run", "--nproc-per-node=1", "train.py")
    assert run.exit_code() == 1
    assert (run.attempts(), run.journal().count('"event":"LauncherExited"')) == (0, 1), "it never came as far as a rank"
    assert "No module named 'torch': install it with: " in run.stderr
    assert "-m pip install torch" in run.stderr
    assert max(map(len, run.stderr.splitlines())) < 400
    assert len(run.stderr.splitlines()) <= 26  # the card has how to start again, and from what
