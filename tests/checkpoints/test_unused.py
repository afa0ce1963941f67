"""What an attempt began without is copied before the attempt saves over it, and the copy stays while the run lasts."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.model import Verdict
from checkpointing.retention.copies import Copies
from checkpointing.retention.rules import RetentionPolicy
from checkpointing.verification import verify
from supervisor.checkpoints import unused
from supervisor.checkpoints.job import JobCheckpoints
from supervisor.checkpoints.recording.reports import CheckpointAlert, CheckpointCopied, CheckpointTrouble
from supervisor.config.settings import Checkpoints
from supervisor.core.values import replace
from tests.checkpoints.test_repair import JobOnDisk, Rank, hf

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def begin(disk: JobOnDisk, attempt: int) -> None:
    """Begin another attempt, whose rank saves from now on."""
    disk.checkpoints.ended()
    disk.checkpoints.select(float(attempt), attempt - 1)
    disk.checkpoints.began(attempt)
    disk.rank = Rank(disk.job.attempt_dir(attempt), disk.here)
    disk.checkpoints.records.absorb()


def held(disk: JobOnDisk) -> list[int | None]:
    """Return the steps of the copies that are held."""
    copies = disk.checkpoints.records.copies
    return [copy.manifest.step for copy in copies.all() if copies.is_held(copy)]


def test_the_newest_directory_is_copied_before_the_attempt_reaches_it(tmp_path: Path) -> None:
    disk = JobOnDisk(tmp_path)
    hf(disk, 10)
    newest = hf(disk, 20)
    begin(disk, 2)
    hf(disk, 5)  # its own
    disk.checkpoints.records.absorb()
    disk.checkpoints.keep_unused(2)
    (report,) = disk.reports
    assert isinstance(report, CheckpointCopied)
    assert (report.unused.newest, report.unused.step, report.unused.pattern) == (str(newest), 20, f"{disk.here}/out/checkpoint-[0-9]*")
    disk.rank.saves("out/checkpoint-20/pytorch_model.bin", 20, cut=True)
    assert verify(report.place).verdict is Verdict.VERIFIED


def test_a_file_server_s_clock_that_is_ahead_makes_no_earlier_save_one_of_this_attempt(tmp_path: Path) -> None:
    disk = JobOnDisk(tmp_path)
    hf(disk, 10)
    newest = hf(disk, 20)
    for path in newest.iterdir():
        os.utime(path, (4e9, 4e9))
    begin(disk, 2)
    disk.checkpoints.keep_unused(2)
    assert held(disk) == [20]


def test_of_a_file_that_is_overwritten_already_the_copy_of_the_earlier_attempt_stays(tmp_path: Path) -> None:
    disk = JobOnDisk(tmp_path)
    disk.keep_copy(disk.rank.saves("ckpt.pt", 20))
    disk.keep_copy(disk.rank.saves("ckpt.pt", 30))
    begin(disk, 2)
    disk.keep_copy(disk.rank.saves("ckpt.pt", 10))
    disk.checkpoints.keep_unused(2)
    assert held(disk) == [30]
    for step in (11, 12, 13):
        disk.keep_copy(disk.rank.saves("ckpt.pt", step))
    assert [copy.manifest.step for copy in disk.checkpoints.records.copies.all()] == [30, 12, 13]
    begin(disk, 3)
    disk.checkpoints.keep_unused(3)
    assert held(disk) == [30], "what came after it is no further"
    person = Copies(CheckpointCatalogue(disk.state / "checkpoints", is_writer=True), 0)
    person.prune(RetentionPolicy(1))
    assert 30 in [copy.manifest.step for copy in person.all()]
    begin(disk, 4)
    disk.keep_copy(disk.rank.saves("ckpt.pt", 40))
    begin(disk, 5)
    disk.checkpoints.keep_unused(5)
    assert held(disk) == [40]


def test_a_later_run_holds_its_own(tmp_path: Path) -> None:
    disk = JobOnDisk(tmp_path)
    disk.keep_copy(disk.rank.saves("ckpt.pt", 30))
    begin(disk, 2)
    disk.checkpoints.keep_unused(2)
    later = JobCheckpoints(replace(disk.job, run_id="run-2"), disk.reports.append).records.copies
    assert [later.is_held(copy) for copy in later.all()] == [False]


def test_copies_without_a_step_survive_a_start_from_scratch(tmp_path: Path) -> None:
    disk = JobOnDisk(tmp_path)
    disk.keep_copy(disk.rank.saves("snapshot.pt", 50, key="EPOCHS_RUN"))
    disk.keep_copy(disk.rank.saves("plain.pt", 50, key="loss"))
    begin(disk, 2)
    disk.checkpoints.keep_unused(2)
    disk.keep_copy(disk.rank.saves("snapshot.pt", 1, key="EPOCHS_RUN"))
    disk.keep_copy(disk.rank.saves("plain.pt", 1, key="loss"))
    begin(disk, 3)
    disk.checkpoints.keep_unused(3)
    copies = disk.checkpoints.records.copies
    stay = [(copy.manifest.name, copy.manifest.epoch, copy.manifest.about.attempt) for copy in copies.all() if copies.is_held(copy)]
    assert sorted(stay, key=str) == [("plain.pt", None, 1), ("plain.pt", None, 2), ("snapshot.pt", 50, 1)]


def test_a_run_from_scratch_still_holds_the_copies_of_a_failed_run(tmp_path: Path) -> None:
    disk = JobOnDisk(tmp_path)
    disk.keep_copy(disk.rank.saves("ckpt.pt", 5000))
    begin(disk, 2)
    disk.checkpoints.keep_unused(2)
    disk.keep_copy(disk.rank.saves("ckpt.pt", 10))
    disk.checkpoints.ended()
    (tmp_path / "new").mkdir()
    disk.job = replace(disk.job, run_id="run-2", scratch=tmp_path / "new")
    disk.checkpoints = JobCheckpoints(disk.job, disk.reports.append)
    disk.checkpoints.began(1)
    disk.rank = Rank(disk.job.attempt_dir(1), disk.here)
    disk.checkpoints.keep_unused(1)
    assert held(disk) == [5000]
    for step in (11, 12, 13, 14):
        disk.keep_copy(disk.rank.saves("ckpt.pt", step))
    assert held(disk) == [5000]


def test_a_checkpoint_that_cannot_be_copied_is_an_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = JobOnDisk(tmp_path)
    (disk.here / "ckpt").mkdir()
    disk.rank.saves("ckpt/step_10.pt", 10)
    begin(disk, 2)
    monkeypatch.setattr(unused, "MOST_COPIED_BYTES", 100)
    disk.checkpoints.keep_unused(2)
    (alert,) = disk.reports
    assert isinstance(alert, CheckpointAlert)
    assert alert.trouble is CheckpointTrouble.NO_COPY
    assert "no copy of it is kept: it is larger than" in alert.text
    settings = dataclasses.replace(disk.job.settings, checkpoints=Checkpoints(copies_gib=0))
    none = JobCheckpoints(replace(disk.job, settings=settings), disk.reports.append)
    none.began(2)
    none.keep_unused(2)
    assert "it would not fit into the 0 GB for copies" in disk.reports[-1].text  # type: ignore[union-attr]
