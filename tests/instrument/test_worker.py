"""What a training script may ask, with and without a supervisor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor import worker

if TYPE_CHECKING:
    from conftest import Attempt

PHASED = """
import os, sys, threading
from supervisor.observe.ranks import heartbeats
from supervisor import worker
from pathlib import Path
file = Path(os.environ["SUPERVISE_JOB_DIR"]) / "attempt-0001" / "heartbeat"
def look(where):
    (beat,) = heartbeats.read(file)
    print(where, beat.phase.value, beat.phase_limit_s)
look("start")
with worker.phase("data", at_most_s=1.5):
    look("data")
    with worker.phase("eval"):
        look("nested")
    look("data again")
look("back")
try:
    with worker.phase("eval", at_most_s=float("inf")):
        look("endless")
        raise KeyError
except KeyError:
    look("after an exception")
with worker.phase("lunch"):
    look("unknown")
with worker.phase("eval", at_most_s="soon"):
    look("no number")
def other():
    with worker.phase("eval"):
        look("other thread")
thread = threading.Thread(target=other); thread.start(); thread.join()
with worker.phase("train"):
    worker.heartbeat(7)
look("trained")
"""
REPORTED = """
import os
from pathlib import Path
from supervisor.observe.ranks import heartbeats
from supervisor import worker
file = Path(os.environ["SUPERVISE_JOB_DIR"]) / "attempt-0001" / "heartbeat"
def look():
    (beat,) = heartbeats.read(file)
    print(beat.loss, beat.losses, beat.step)
look()
worker.report(loss=2.5, step=41); look()
worker.report(loss=float("nan")); look()
worker.report(loss=0.0, step=43); look()
worker.report(loss="no number"); worker.report(loss=object(), step=44); worker.report(); look()
worker.report(loss=-1e300); look()
"""
ROOT = Path(__file__).resolve().parents[2]
ALL = (
    "import json, sys; before = set(sys.modules)\n"
    "from supervisor import worker\n"
    "worker.heartbeat(41, total=900)\n"
    "print(json.dumps([worker.save_requested(), worker.resume_from(), worker.resume_step(), sorted(set(sys.modules) - before)]))\n"
)


def test_without_a_supervisor_everything_answers_as_if_there_were_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SUPERVISE_JOB_")]:
        monkeypatch.delenv(name)
    worker.heartbeat(3)
    worker.heartbeat(4, total=9)
    worker.report(loss=2.5, step=4)
    with worker.phase("eval", at_most_s=9):
        pass
    assert (worker.save_requested(), worker.resume_from(), worker.resume_step()) == (False, None, None)


def test_the_checkpoint_to_resume_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERVISE_JOB_RESUME_FROM", "/ckpt/a.pt")
    monkeypatch.setenv("SUPERVISE_JOB_RESUME_STEP", "120")
    assert (worker.resume_from(), worker.resume_step()) == ("/ckpt/a.pt", 120)
    monkeypatch.setenv("SUPERVISE_JOB_RESUME_STEP", "")
    assert worker.resume_step() is None


def test_asking_for_a_save_shows_that_the_script_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SUPERVISE_JOB_DIR", str(tmp_path))
    assert not worker.save_requested()
    assert (tmp_path / "wants-save").exists()
    (tmp_path / "save-now").touch()
    assert worker.save_requested()
    monkeypatch.setenv("SUPERVISE_JOB_DIR", str(tmp_path / "gone"))
    assert not worker.save_requested()


@pytest.mark.process
def test_in_a_rank_the_word_reaches_the_slot_and_costs_no_import(attempt: Attempt) -> None:
    (attempt.job_dir / "save-now").touch()
    done = attempt.run("-c", ALL, env=attempt.env(pythonpath=str(ROOT)))
    assert done.stdout.startswith("[true, null, null,"), done.stderr
    assert '"torch"' not in done.stdout
    assert '"supervisor.instrument' not in done.stdout
    (beat,) = attempt.beats()
    assert (beat.step, beat.step_source, beat.total, beat.save_asked) == (41, "worker", 900, True)


@pytest.mark.process
def test_a_declared_phase_reaches_the_slot_and_ends_with_its_block(attempt: Attempt) -> None:
    done = attempt.run("-c", PHASED, env=attempt.env(pythonpath=str(ROOT)))
    assert done.stdout.splitlines() == [
        "start import None",
        "data data 1.5",
        "nested eval None",
        "data again data 1.5",
        "back import None",
        "endless eval 1000000000.0",
        "after an exception import None",
        "unknown import None",
        "no number import None",
        "other thread import None",
        "trained train None",
    ], done.stderr
    assert "'lunch' is not a phase" in done.stderr
    assert "-c:" in done.stderr or "<string>:" in done.stderr, "the warning names the script's own line"


@pytest.mark.process
def test_a_reported_loss_reaches_the_slot_whatever_number_it_is_and_nothing_else_does(attempt: Attempt) -> None:
    done = attempt.run("-c", REPORTED, env=attempt.env(pythonpath=str(ROOT)))
    assert done.stdout.splitlines() == ["None 0 None", "2.5 1 41", "nan 2 41", "-0.0 3 43", "-0.0 3 44", "-1e+300 4 44"], done.stderr
