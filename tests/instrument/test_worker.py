"""What a training script may ask, with and without a supervisor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor import worker

if TYPE_CHECKING:
    from conftest import Attempt

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
