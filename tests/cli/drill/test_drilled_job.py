"""The job of a drill: what becomes of it when the drill itself is killed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli.drill.drilled_job import DrilledJob
from supervisor.cli.progress import progress
from supervisor.config.settings import Settings
from tests.support.terminal import at_once
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]
#: A drill whose job waits until it is asked to end.
DRILL = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from checkpointing.command_line.progress import ProgressBar
from supervisor.cli.drill.drilled_job import DrilledJob

def wait():
    signal.signal(signal.SIGTERM, lambda *_: (Path("asked").touch(), os._exit(0)))
    Path("runs").touch()
    while True:
        signal.pause()

DrilledJob(None, [], Path("state"), Path("scratch"), wait, ProgressBar(wanted=False)).start()
signal.pause()
"""


def test_a_wait_is_reported_with_the_remaining_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_once(monkeypatch, line_every_s=0.0)
    with progress(beside_output=True) as bar:
        job = DrilledJob(Settings(), [], tmp_path, tmp_path, lambda: None, bar)
        monkeypatch.setattr(job, "has_ended", lambda: False)
        answers = iter([None, None, 7])
        assert job.wait(lambda: next(answers), 600, every_s=0.0, phase="training to step 7") == 7
        assert job.wait(lambda: None, 0.0, every_s=0.0, phase="training to step 8") is None
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert len(lines) == 2
    assert all(re.fullmatch(r"supervise: drill: training to step 7: 0 s, (10 min 0|9 min 59) s left", line) for line in lines)
    assert printed.out == ""


@pytest.mark.process
def test_the_job_of_a_drill_that_is_killed_is_asked_to_end(tmp_path: Path) -> None:
    drill = subprocess.Popen([sys.executable, "-c", DRILL], cwd=tmp_path)  # noqa: S603  the program above
    wait_for((tmp_path / "runs").exists, "the job", 60, alive=lambda: drill.poll() is None)
    assert not (tmp_path / "asked").exists()
    drill.kill()
    drill.wait()
    wait_for((tmp_path / "asked").exists, "the end of the job", 30)
