"""A loop without an optimizer of torch's: it has standbys and a limit of its own, and its steps stay unknown."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.core.model import HangKind
from tests.e2e.test_standby import logged, ready, starts
from tests.pathologies.hanging_jobs import confirmed, taken
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(240)]

LOOP = ["torchrun", "--standalone", "--nproc-per-node=2", str(Path(__file__).parents[1] / "jobs" / "loops.py")]
#: The limit of a phase is out of reach: what is found is found by the limit of the loop itself.
LIMITS = {"SUPERVISE_HANG_TRAIN_S": "4", "SUPERVISE_HANG_PHASE_S": "3600", "_SUPERVISE_TEST_INTERVALS": "0.04"}


def seconds(run: Supervised) -> float:
    """Return how long both ranks have looped."""
    return time.time() - (run.place / "pids").stat().st_mtime


def test_a_loop_without_an_optimizer_has_standbys_and_its_hang_is_found(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*LOOP, "collectives", options=["--standby", "on", "--on-hang", "restart"], **LIMITS)
    waiting = ready(run, 1)
    wait_for(lambda: run.status()["standby"]["text"].startswith("now: 2 ready"), "status to say so", alive=run.alive)
    first = dict(starts(run, 2))
    wait_for(lambda: taken(run, "ProgressObserved")[-1]["phase"] == "unknown", "no phase is known", 60, alive=run.alive)
    os.kill(first[1], signal.SIGKILL)
    assert sorted(pid for _, pid in starts(run, 4)[2:]) == waiting, "the ranks of the next attempt are the standbys"
    [used] = wait_for(lambda: logged(run, "standby.used"), "their use is logged", alive=run.alive)
    assert (used["ranks"], used["cold"]) == ([0, 1], "")
    left = run.status()["restarts_left"]
    wait_for(lambda: seconds(run) > 25, "the limit of the loop is known", 60, alive=run.alive)
    assert run.status()["restarts_left"] == left, "the budget is not refilled"
    (run.place / "halt").touch()
    hang = confirmed(run, 90)
    assert (hang["kind"], tuple(hang["ranks"]), hang.get("calibrated", True)) == (HangKind.LATE, (1,), True), hang
    assert hang["limit_s"] < 60
    (run.place / "halt").unlink()
    starts(run, 6)
    progress = taken(run, "ProgressObserved")
    assert {(event["step"], event["steps_seen"]) for event in progress} <= {(None, 0), (None, -1)}, "no step is counted"
    (run.place / "end").touch()
    assert run.exit_code() == 0
    run.wait_for_nothing_left()


def test_pauses_that_are_longer_than_the_limit_are_no_hang_while_the_ranks_work(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*LOOP, "collectives", "--pause-s=15", options=["--on-hang", "restart"], **LIMITS)
    starts(run, 2)
    wait_for(lambda: seconds(run) > 75, "some pauses", 120, alive=run.alive)
    (run.place / "end").touch()
    assert run.exit_code() == 0
    assert run.attempts() == 1
    assert not taken(run, "HangConfirmed")
