"""The deciding loop waits for no disk, process, other machine or thread: a dead NFS or a stopped guardian must not make it deaf."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.test_nodes import ALONE, Cluster
from tests.e2e.test_survival import LAUNCHERS, NO_TORCH, RESUMING, STEADY
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised, Surroundings

#: Is killed in its first attempt, and waits in its second to be ended.
SCRIPT = """
import os, time
attempt = int(os.environ["SUPERVISE_JOB_ATTEMPT"])
open(f"began-{attempt}", "w").close()
if attempt == 1:
    os.kill(os.getpid(), 9)
while attempt < 3:
    time.sleep(0.01)
"""
WATCHED = str(Path(__file__).parents[1] / "support" / "loop_waits.py")


def guardian_of(pid: int) -> int:
    """Return the pid of the guardian of a supervisor."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(child) for child in children if b"guardian" in Path(f"/proc/{child}/cmdline").read_bytes())


@pytest.mark.process
def test_the_loop_waits_for_nothing_through_a_failure_a_guardians_death_and_the_end(
    supervise: Callable[..., Supervised], surroundings: type[Surroundings], tmp_path: Path
) -> None:
    waits = tmp_path / "waits"
    around = surroundings(prefix=(sys.executable, WATCHED))
    run = supervise(sys.executable, "-c", SCRIPT, around=around, LOOP_WAITS=str(waits))
    wait_for((run.place / "began-2").exists, "the second attempt", alive=run.alive)
    os.kill(guardian_of(run.process.pid), signal.SIGKILL)
    assert run.exit_code() == 0
    assert run.attempts() == 3
    assert waits.read_text() == ""


@pytest.mark.slow
@pytest.mark.process
def test_the_loop_waits_for_nothing_under_torchrun_with_checkpoints_and_an_alert_sink(
    supervise: Callable[..., Supervised], surroundings: type[Surroundings], tmp_path: Path
) -> None:
    waits = tmp_path / "waits"
    (tmp_path / "supervise.toml").write_text('[[alerts.sink]]\nkind = "exec"\ncommand = ["/bin/true"]\n')
    around = surroundings(prefix=(sys.executable, WATCHED))
    job = (*LAUNCHERS["torchrun"][0], NO_TORCH, "--steps=2000", *STEADY)
    run = supervise(*job, options=[*RESUMING, "--config", str(tmp_path / "supervise.toml")], around=around, LOOP_WAITS=str(waits))
    run.wait_for_step(12)
    os.kill(run.rank_pids()[0], signal.SIGKILL)
    wait_for(lambda: run.attempts() == 2, "the second attempt", alive=run.alive)
    pid = run.rank_pids(2)[0]
    os.kill(guardian_of(run.process.pid), signal.SIGKILL)
    wait_for(lambda: run.attempts() == 3 and run.rank_pids(3)[0] != pid, "the third attempt", alive=run.alive)
    run.signal(signal.SIGTERM)
    run.exit_code()
    assert waits.read_text() == ""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_loops_of_two_nodes_wait_for_nothing_through_a_failure_and_the_end(
    supervise: Callable[..., Supervised], surroundings: type[Surroundings], tmp_path: Path
) -> None:
    around = surroundings(prefix=(sys.executable, WATCHED))

    def start(*words: str, place: Path, **more: Any) -> Supervised:  # noqa: ANN401  what the fixture takes
        return supervise(*words, place=place, around=around, LOOP_WAITS=str(place / "waits"), **more)

    nodes = Cluster(start, tmp_path, "--step-ms=100", script=ALONE)
    nodes.reached(0, 5)
    os.kill(nodes.pids()[1], signal.SIGKILL)
    assert [run.exit_code(200) for run in nodes.runs] == [0, 0]
    assert [run.attempts() for run in nodes.runs] == [2, 2]
    assert [(run.place / "waits").read_text() for run in nodes.runs] == ["", ""]
