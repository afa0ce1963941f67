"""The job of a drill: what becomes of it when the drill itself is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]
#: A drill whose job waits until it is asked to end.
DRILL = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from supervisor.cli.drill.drilled_job import DrilledJob

def wait():
    signal.signal(signal.SIGTERM, lambda *_: (Path("asked").touch(), os._exit(0)))
    Path("runs").touch()
    while True:
        signal.pause()

DrilledJob(None, [], Path("state"), Path("scratch"), wait).start()
signal.pause()
"""


@pytest.mark.process
def test_the_job_of_a_drill_that_is_killed_is_asked_to_end(tmp_path: Path) -> None:
    drill = subprocess.Popen([sys.executable, "-c", DRILL], cwd=tmp_path)  # noqa: S603  the program above
    wait_for((tmp_path / "runs").exists, "the job", 60, alive=lambda: drill.poll() is None)
    assert not (tmp_path / "asked").exists()
    drill.kill()
    drill.wait()
    wait_for((tmp_path / "asked").exists, "the end of the job", 30)
