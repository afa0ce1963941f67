"""The drill `bitrot` damages a checkpoint of its own job and none of the user's; and how a drill reads a recovery."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from checkpointing.command_line.progress import ProgressBar
from supervisor.cli.drill.drilled_job import DrilledJob
from supervisor.cli.drill.faults import BIT, Account, DrillOrder, Struck, _Drill
from supervisor.cli.drill.scratch_directory import ScratchDirectory
from supervisor.cli.drill.scratch_job import ScratchPlace
from supervisor.config.settings import Checkpoints, Settings
from supervisor.core import model
from supervisor.core.actions import ReportResume
from supervisor.core.model import Hang, HangKind
from supervisor.view.incidents import RecordedIncident
from supervisor.view.job_view import JobView

if TYPE_CHECKING:
    from pathlib import Path

GOOD = bytes(range(256)) * 40


@pytest.fixture
def drill(tmp_path: Path) -> _Drill:
    """Return a drill whose job was not started."""
    (tmp_path / "work" / "ckpt").mkdir(parents=True)
    settings = replace(Settings(), checkpoints=Checkpoints(paths=("ckpt/*.pt",)), cwd=str(tmp_path / "work"))
    job = DrilledJob(settings, ["true"], tmp_path, tmp_path, lambda: None, ProgressBar(wanted=False))
    return _Drill(DrillOrder("bitrot", 1, 0, 1.0, 60.0, ScratchPlace("", ())), ScratchDirectory(tmp_path), job)


def test_the_damage_flips_one_bit_of_the_newest_checkpoint(drill: _Drill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for t, name in enumerate(("old.pt", "last.pt")):
        (tmp_path / "work" / "ckpt" / name).write_bytes(GOOD)
        os.utime(tmp_path / "work" / "ckpt" / name, (t, t))
    (tmp_path / "work" / "ckpt" / "empty.pt").touch()
    monkeypatch.setattr("pathlib.Path.read_bytes", None)  # a checkpoint is larger than our memory
    assert drill._damage() == "ckpt/last.pt"  # noqa: SLF001
    monkeypatch.undo()
    damaged = (tmp_path / "work" / "ckpt" / "last.pt").read_bytes()
    assert [(at, old ^ new) for at, (old, new) in enumerate(zip(GOOD, damaged, strict=True)) if old != new] == [(len(GOOD) // 2, BIT)]
    assert (tmp_path / "work" / "ckpt" / "old.pt").read_bytes() == GOOD


def test_the_damage_waits_for_a_checkpoint(drill: _Drill, tmp_path: Path) -> None:
    assert drill._damage() is None  # noqa: SLF001
    (tmp_path / "work" / "ckpt" / "begun.pt").touch()
    assert drill._damage() is None  # noqa: SLF001


def test_a_save_that_the_next_start_did_not_load_is_not_called_missing(drill: _Drill) -> None:
    drill._order = DrillOrder("preempt", 20, 0, 1.0, 60.0, ScratchPlace("", ()))  # noqa: SLF001
    drill._noticed = (100.0, "asked to stop")  # noqa: SLF001
    resumed = (130.0, ReportResume(0, 1, None, None, confirmed=True))
    facts = {fact.label: fact.text for fact in drill._facts(Struck(100.0, 20, "notice was given"), Account(None, 100.0, [], resumed))}  # noqa: SLF001
    assert facts["saved"] == "not shown: it does not ask worker.should_save(), or the next start did not load what it saved"
    assert facts["recovered"] == "at step 0 from scratch; 20 steps made again"


def account(view: JobView, stop_t: float | None = None) -> Account:
    """Return what is read since a fault at 100."""
    job: Any = SimpleNamespace(view=lambda: view, decisions=lambda _since: [], settings=Settings())
    return Account.of(job, 100.0, stop_t)


def test_the_beginning_of_the_attempt_before_the_fault_is_no_recovery() -> None:
    incident = RecordedIncident(1, "run", 102.0, 1, "rank 1: killed by signal 9", model.Progress(), [])
    first, second = ReportResume(0, 1, None, None, confirmed=True), ReportResume(1, 2, 5, "ckpt/5.pt", confirmed=True)
    assert account(JobView(resumed=(101.0, first))) == Account(None, None, [])
    assert account(JobView(resumed=(101.0, first), incidents=[incident])).resumed is None
    outcome = account(JobView(resumed=(109.0, second), incidents=[incident]))
    assert (outcome.noticed, outcome.resumed) == ((102.0, "rank 1: killed by signal 9"), (109.0, second))
    incident.opened_t = 90.0
    assert account(JobView(resumed=(109.0, second), incidents=[incident])).opened_t is None, "it is of before the fault"


def test_a_continuing_hang_is_noticed_and_only_the_drills_stop_counts() -> None:
    outcome = account(JobView(hang=(118.0, Hang(HangKind.LATE, "rank 1 does not come", (1,), still_s=18.0, limit_s=10.0)), stop_t=150.0))
    assert (outcome.opened_t, outcome.noticed is not None and outcome.noticed[0]) == (None, 118.0)
    assert "no progress for 18 s: rank 1 does not come; the job continues" in str(outcome.noticed)
    assert account(JobView(stop_t=101.0), 101.0).noticed == (101.0, "asked to stop")
