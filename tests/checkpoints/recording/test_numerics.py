"""Reports of numbers that turned NaN or Inf: of the save in which they did, never of a mask that has them from the first save on."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from msgspec.structs import force_setattr

from checkpointing.io.tree import ReadOptions
from checkpointing.model import NonFinite, Verdict
from checkpointing.reader.messages import CheckpointRead
from checkpointing.verification import verify
from supervisor.checkpoints.recording import numerics
from supervisor.checkpoints.recording.reports import CheckpointAlert, CheckpointTrouble
from supervisor.cli.checkpoints import facts
from supervisor.cli.checkpoints import verify as checkpoint_verify
from supervisor.observe.ranks.path_patterns import pattern_of
from tests.checkpoints.test_repair import JobOnDisk, disk

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["disk"]
NAN = float("nan")


class Saves:
    """A job that saves, and the watcher that looks at each save."""

    def __init__(self, disk: JobOnDisk) -> None:
        """Take note of what would be alerted."""
        self.disk = disk
        self.looked_for: set[str] = set()  # patterns of what a load was tried of

    @property
    def alerts(self) -> list[str]:
        """The alerts."""
        reports = self.disk.reports
        return [report.text for report in reports if isinstance(report, CheckpointAlert) and report.trouble is CheckpointTrouble.NOT_FINITE]

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints that were reported."""
        return [int(text.removeprefix("the checkpoint of step ").partition(" ")[0]) for text in self.alerts]

    def save(self, step: int, weight: float = 1.0, name: str = "") -> Path:
        path = self.write(step, weight, name)
        self.disk.checkpoints.records.absorb()
        self.watched(path)
        return path

    def write(self, step: int, weight: float = 1.0, name: str = "") -> Path:
        name = name or f"step_{step}.pt"
        if pattern_of(name) not in self.looked_for:
            self.disk.rank.loads(name)  # before the first step, as a script that resumes by itself does
            self.looked_for.add(pattern_of(name))
        path = self.disk.rank.saves(name, step)
        alibi = torch.tensor([0.5, 1.0, -float("inf")])
        torch.save({"model": {"weight": torch.tensor([1.0, weight, 3.0]), "alibi": alibi}, "step": step}, path)
        return path

    def watched(self, path: Path) -> None:
        """Do what the watcher does with what stood still."""
        verification = verify(str(path))
        assert verification.verdict is Verdict.VERIFIED
        manifest = self.disk.checkpoints.recorder.record_verified(verification, ReadOptions())
        assert manifest is not None
        self.disk.checkpoints.recorder.note_newest(manifest)
        self.disk.checkpoints.retention.keep_copy(manifest, CheckpointRead(0), self.disk.checkpoints.recorder)


def test_a_weight_that_turned_nan_is_reported_once_with_the_last_finite_step(disk: JobOnDisk) -> None:
    saves = Saves(disk)
    for step, weight in ((50, 1.0), (100, 2.0), (150, NAN), (200, NAN)):
        saves.save(step, weight)
    (text,) = saves.alerts
    assert saves.steps == [150]
    assert "model.weight is not finite: NaN at element 1" in text
    assert "the last finite one is of step 100" in text
    assert "alibi" not in text, "it was so from the first save on"
    shutil.rmtree(disk.state / "checkpoints")  # at the end of a run nothing is read there: it may hang
    assert "step 200" in disk.checkpoints.numbers()
    assert "the last finite one is of step 100" in disk.checkpoints.numbers()


def test_a_roll_back_to_a_lower_step_that_is_finite_ends_it_and_the_next_time_is_reported_again(disk: JobOnDisk) -> None:
    saves = Saves(disk)
    saves.save(100)
    saves.save(200, NAN)
    for path in disk.here.iterdir():
        path.unlink()  # the manifests of what is gone are passed over as the next ones are written
    disk.checkpoints.records.manifests.sweep()  # what the watcher does
    saves.save(100, 4.0)
    assert disk.checkpoints.numbers() == ""
    saves.save(150, NAN)
    assert saves.steps == [200, 150]


def test_a_file_written_in_place_keeps_its_finite_copy_and_the_torn_one_is_replaced_by_that(disk: JobOnDisk) -> None:
    saves = Saves(disk)
    saves.save(100, name="ckpt.pt")
    for step in (150, 200, 250):
        saves.save(step, NAN, name="ckpt.pt")
    assert saves.steps == [150]
    assert [copy.manifest.step for copy in disk.checkpoints.records.copies.all()] == [100]
    assert disk.repairs() == {}, "NaN is no reason to move it"
    assert verify(str(disk.here / "ckpt.pt")).step == 250


@pytest.mark.parametrize("in_one_tick", [False, True], ids=["apart", "within one tick of the clock"])
def test_nan_is_reported_even_if_the_newer_save_is_verified_first(disk: JobOnDisk, *, in_one_tick: bool) -> None:
    saves = Saves(disk)
    paths = [saves.write(step, weight) for step, weight in ((100, 1.0), (200, NAN))]
    if in_one_tick:
        at_ns = paths[1].stat().st_mtime_ns
        for path in paths:
            os.utime(path, ns=(at_ns, at_ns))
    disk.checkpoints.records.absorb()
    saves.watched(disk.here / "step_200.pt")
    assert saves.alerts == []
    saves.watched(disk.here / "step_100.pt")
    assert saves.steps == [200]
    assert "the last finite one is of step 100" in disk.checkpoints.numbers()


def test_saves_of_another_run_are_not_compared(disk: JobOnDisk) -> None:
    saves = Saves(disk)
    saves.save(100)
    force_setattr(disk.job, "run_id", "run-2")
    saves.save(200, NAN)
    assert (saves.alerts, disk.checkpoints.numbers()) == ([], "")


def test_files_whose_saves_ended_stay_where_they_are_whatever_they_hold(disk: JobOnDisk) -> None:
    saves = Saves(disk)
    for step in (100, 200, 300):
        saves.save(step, NAN)
    assert disk.repairs() == {}
    path = disk.rank.saves("ckpt.pt", 10)
    disk.rank.loads("ckpt.pt")
    with path.open("r+b") as file:
        file.seek(300)
        file.write(b"x")
    status = path.stat()
    disk.rank.line(what="began", path=str(path), n=99, via="torch", was=None, file=False)
    disk.rank.line(what="ended", path=str(path), n=99, well=True, now=[status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns])
    assert "left where it is, because its save ended" in disk.repairs()["ckpt.pt"]
    assert disk.moved() == []


def test_ls_shows_the_tensor_that_is_not_finite(disk: JobOnDisk) -> None:
    saves = Saves(disk)
    saves.save(100)
    saves.save(200, NAN)
    (mask, _) = disk.checkpoints.records.manifests.all()
    assert facts.numbers_text(mask) == "model.alibi is not finite: Inf at element 2"


def test_latest_passes_over_weights_that_turned_nan_as_a_resume_does(disk: JobOnDisk, capfd: pytest.CaptureFixture[str]) -> None:
    saves = Saves(disk)
    saves.save(100)
    saves.save(200, NAN)
    checkpoint_verify.latest(str(disk.here), disk.state / "checkpoints", as_json=True)
    row = json.loads(capfd.readouterr().out)
    assert row["step"] == 100
    assert [(checkpoint["step"], checkpoint["verdict"]) for checkpoint in row["passed_over"]] == [(200, "good")]
    assert "NaN" in row["passed_over"][0]["reasons"][0]


def test_an_incomplete_list_of_tensors_reports_no_new_nan(disk: JobOnDisk) -> None:
    saves = Saves(disk)
    saves.save(100)
    (before,) = disk.checkpoints.records.manifests.all()
    many = tuple(NonFinite(f"w{number}", "NaN", 0) for number in range(numerics.MOST_NON_FINITE))
    object.__setattr__(before, "non_finite", many)
    assert numerics.compared((NonFinite("later", "NaN", 0),), before) == (NonFinite("later", "NaN", 0),)
