"""A program that trained before and cannot read its data at a restart: it is started again, and continues once the data are back."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOB = Path(__file__).parents[1] / "jobs" / "reads_data.py"
OPTIONS = ["--checkpoints", "ckpt/step-*.pt", "--resume-args", "--resume {resume}"]

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]


def trained(supervise: Callable[..., Supervised], place: Path) -> Supervised:
    """Start the job in `place`, and return it once it has saved twice and its data are gone."""
    (place / "data.txt").write_text("0.1\n0.2\n", encoding="utf-8")
    (place / "train.py").write_bytes(JOB.read_bytes())
    run = supervise(sys.executable, "train.py", options=OPTIONS)
    wait_for(lambda: len(list(place.glob("ckpt/step-*.pt"))) > 1, "two saves", 120, alive=run.alive)
    (place / "data.txt").rename(place / "away.txt")
    return run


def kill(place: Path) -> None:
    os.kill(int((place / "pid").read_text(encoding="utf-8")), signal.SIGKILL)


def test_data_that_come_back_are_waited_for(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = trained(supervise, tmp_path)
    kill(tmp_path)
    wait_for(lambda: "start_again" in run.journal(), "another start is planned", 120, alive=run.alive)
    (tmp_path / "away.txt").rename(tmp_path / "data.txt")
    (tmp_path / "enough").touch()
    assert run.exit_code(180) == 0, run.stderr[-3000:]
    assert "FileNotFoundError" in run.stderr


def test_a_program_that_was_edited_meanwhile_stops_when_it_fails_a_second_time(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    run = trained(supervise, tmp_path)
    (tmp_path / "train.py").write_bytes(JOB.read_bytes() + b"# edited\n")
    kill(tmp_path)
    assert run.exit_code(120) == 1, run.stderr[-3000:]
    assert "it failed before its first step, as attempt 2 did" in run.journal()
    assert '"strategy":"start_again"' not in run.journal()
