"""A loss that turns NaN in a script that trains on: a warning, and with `loss.on_nan = "restart"` a failure like any other."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

pytestmark = pytest.mark.process

#: Trains on without a word about the NaN; in a second attempt the loss is good. It ends once a file tells it to.
PRINTS = """
import os, pathlib, time
again = pathlib.Path("once").exists()
pathlib.Path("once").touch()
for step in range(100_000):
    print(f"step {step} loss: {2.5 if again or step < 10 or pathlib.Path('good').exists() else float('nan')}", flush=True)
    time.sleep(0.05)
    if pathlib.Path("end").exists() or (again and step > 20):
        break
"""
REPORTS = """
import math, pathlib, time
from supervisor import worker
step = 0
while not pathlib.Path("end").exists():
    step += 1
    worker.report(loss=math.nan if step > 5 else 2.5, step=step)
    time.sleep(0.02)
"""


def test_a_nan_is_warned_of_as_long_as_it_lasts_and_ends_nothing(supervise: Callable[..., Supervised]) -> None:
    run = supervise(sys.executable, "-c", PRINTS, options=["--set", "instrument.enabled=false"])
    wait_for(lambda: "loss is NaN, 2 times in a row" in run.stderr, "the warning", 30, alive=run.alive)
    (warning,) = wait_for(lambda: run.status()["warnings"], "the warning in status", alive=run.alive)  # its record may come after its line
    assert warning.startswith("loss is NaN, 2 times in a row (step ")
    (run.place / "good").touch()
    wait_for(lambda: "loss: over: loss is 2.5 again" in run.stderr, "the end of it", 30, alive=run.alive)
    wait_for(lambda: run.status()["warnings"] == [], "no warning in status", alive=run.alive)
    (run.place / "end").touch()
    assert run.exit_code(deadline_s=20) == 0
    assert run.journal().count('"event":"LossChanged"') == 2
    assert run.status()["incidents"] == 0


@pytest.mark.slow
def test_a_loss_that_is_only_reported_is_watched_too(supervise: Callable[..., Supervised]) -> None:
    run = supervise(sys.executable, "-c", REPORTS)
    wait_for(lambda: "loss is NaN, 2 times in a row" in run.stderr, "the warning", 30, alive=run.alive)
    (run.place / "end").touch()
    assert run.exit_code(deadline_s=20) == 0


@pytest.mark.slow
def test_with_on_nan_restart_the_attempt_is_ended_and_nan_is_the_cause(supervise: Callable[..., Supervised]) -> None:
    run = supervise(sys.executable, "-c", PRINTS, options=["--set", "loss.on_nan=restart", "--resumes-itself"])
    assert run.exit_code(deadline_s=60) == 0, run.stderr
    assert "the attempt is ended (--set loss.on_nan=restart)" in run.stderr
    status = run.status()
    assert (status["attempt"], status["incidents"]) == (2, 1)
    assert '"cause":"nan_loss"' in run.journal()
    page = run.ask("why").stdout
    assert "strange " in page
    assert "loss is NaN, 2 times in a row (step " in page
