"""The page of a job from before its beginning until its supervisor is killed: each change is reported, and it stays when all are dead."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor.job.identity import node_name
from tests.cli.ui.conftest import serve
from tests.cli.ui.test_server import fingerprint
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.ui.conftest import ServedPage
    from tests.support.supervised import Supervised

__all__ = ["serve"]
pytestmark = pytest.mark.process

#: Continues where it was killed, and ends once a file tells it to.
TRAINS = """
import pathlib, time
from supervisor import worker
at = pathlib.Path("at")
step = int(at.read_text()) if at.exists() else 0
while not pathlib.Path("end").exists():
    step += 1
    at.with_name("half").write_text(str(step))
    at.with_name("half").rename(at)
    worker.report(loss=1 / step, step=step)
    time.sleep(0.05)
"""


@pytest.mark.slow  # tests/cli/ui has the pages of such jobs
def test_a_job_is_shown_while_it_runs_fails_and_recovers_and_when_its_supervisor_is_killed(
    supervise: Callable[..., Supervised], serve: Callable[..., ServedPage], tmp_path: Path
) -> None:
    page = serve(tmp_path / "state")
    assert "No job was supervised here yet" in page.ask().text
    run = supervise(sys.executable, "-c", TRAINS, options=["--resumes-itself"])
    shown = lambda pattern: wait_for(  # noqa: E731
        lambda: re.search(pattern, page.ask(f"/jobs/e2e/{node_name()}").text), pattern, 60, alive=page.is_alive
    )
    wait_for(lambda: "training" in page.ask().text, "the job to be listed", 60)
    shown(r'>step</p><p class="value">[1-9]')
    (pid,) = run.rank_pids().values()
    os.kill(pid, signal.SIGKILL)
    shown(r'>attempt</p><p class="value">2')
    text = shown(r'(?s)<details id="incident-1"><summary><span class="state good"><span class="dot" [^>]*></span>resolved.*')[0]
    assert "start and load" in text
    assert "killed_unknown" in text
    run.signal(signal.SIGKILL)
    shown("nobody restarts the job")
    run.wait_for_nothing_left()
    before = fingerprint(run.state)
    assert "supervise died" in page.ask().text
    shown("incident 2: Supervise died while this attempt ran")
    assert page.stop() == 0
    assert fingerprint(run.state) == before, "the page writes nothing"
