"""A recognised program's option hands over what this run saved; what an earlier run left belongs to another training."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from supervisor.checkpoints.job import JobCheckpoints
from supervisor.core.model import Knob
from supervisor.core.values import replace
from supervisor.knobs.knob_set import KnobSet, ResumeWay
from tests.checkpoints.test_repair import JobOnDisk, Rank

if TYPE_CHECKING:
    from pathlib import Path

SWITCH = ResumeWay(Knob("resume", "", "--init_from=resume", by="nanogpt", counts="switch"), "--init_from=resume")


def test_a_new_run_is_not_given_earlier_saves_unless_it_continues_them(tmp_path: Path) -> None:
    disk = JobOnDisk(tmp_path)
    path = disk.rank.saves("ckpt.pt", 5000)
    disk.rank.saves("ckpt.pt", 5000)
    os.utime(path, (1e9, 1e9))  # the next run begins more than a clock's tick later
    disk.checkpoints.records.absorb()
    disk.checkpoints.ended()
    (tmp_path / "new").mkdir()
    job = replace(disk.job, run_id="run-2", knobs=KnobSet(resume=(SWITCH,)), scratch=tmp_path / "new")
    later = JobCheckpoints(job, disk.reports.append)
    later.began(1)
    later.ended()

    def chosen(*, own_only: bool) -> int | None:
        later.set_resume_way("nanogpt", own_only=own_only)
        checkpoint = later.select(1.0, 1).chosen
        return None if checkpoint is None else checkpoint.step

    assert chosen(own_only=True) is None
    assert chosen(own_only=False) == 5000
    Rank(job.attempt_dir(1), disk.here).saves(path.name, 10)
    assert chosen(own_only=True) == 10


def test_a_torn_checkpoint_of_an_earlier_run_is_seen_all_the_same(tmp_path: Path) -> None:
    disk = JobOnDisk(tmp_path)
    disk.rank.saves("ckpt.pt", 10)
    torn = disk.rank.saves("ckpt.pt", 20, cut=True)
    os.utime(torn, (1e9, 1e9))
    disk.checkpoints.records.absorb()
    disk.checkpoints.ended()
    (tmp_path / "new").mkdir()
    job = replace(disk.job, run_id="run-2", knobs=KnobSet(resume=(SWITCH,)), scratch=tmp_path / "new")
    later = JobCheckpoints(job, disk.reports.append)
    rank = Rank(job.attempt_dir(1), disk.here)
    later.began(1)
    rank.loads("ckpt.pt")
    later.ended()
    later.set_resume_way("nanogpt", own_only=True)
    selection = later.select(1.0, 1)
    assert selection.chosen is None
    assert selection.repaired or selection.torn_in_use == str(torn)


def test_the_kept_copy_of_a_file_that_a_stranger_tore_is_named(tmp_path: Path) -> None:
    disk = JobOnDisk(tmp_path)
    disk.job = replace(disk.job, knobs=KnobSet(resume=(SWITCH,)))
    disk.checkpoints = JobCheckpoints(disk.job, disk.reports.append)
    disk.checkpoints.began(1)
    path = disk.rank.saves("ckpt.pt", 10)
    disk.keep_copy(path)
    os.truncate(path, 500)
    disk.checkpoints.ended()
    disk.checkpoints.set_resume_way("nanogpt", own_only=True)
    selection = disk.checkpoints.select(1.0, 2)
    ((torn, copy),) = selection.kept_copies
    assert (torn, selection.repaired) == (str(path), ())
    assert torch.load(copy)["step"] == 10


def test_a_concurrent_save_of_another_job_is_not_handed_over(tmp_path: Path) -> None:
    disk = JobOnDisk(tmp_path)
    disk.job = replace(disk.job, knobs=KnobSet(resume=(SWITCH,)))
    disk.checkpoints = JobCheckpoints(disk.job, disk.reports.append)
    disk.checkpoints.began(1)
    (disk.here / "ckpt").mkdir()
    disk.rank.saves("ckpt/step_5.pt", 5)
    mine = disk.rank.saves("ckpt/step_10.pt", 10)
    torch.save({"step": 12, "w": torch.ones(256)}, disk.here / "ckpt" / "step_12.pt")
    disk.checkpoints.ended()
    disk.checkpoints.set_resume_way("nanogpt", own_only=True)
    checkpoint = disk.checkpoints.select(1.0, 1).chosen
    assert checkpoint is not None
    assert checkpoint.path == str(mine)


def test_a_checkpoint_from_a_mirror_for_this_run_is_its_own(tmp_path: Path) -> None:
    disk = JobOnDisk(tmp_path)
    path = disk.rank.saves("ckpt.pt", 5000)
    disk.checkpoints.ended()
    (tmp_path / "new").mkdir()
    job = replace(disk.job, run_id="run-2", knobs=KnobSet(resume=(SWITCH,)), scratch=tmp_path / "new")
    later = JobCheckpoints(job, disk.reports.append)
    later.restored(str(path), began=0)
    later.set_resume_way("nanogpt", own_only=True)
    checkpoint = later.select(1.0, 0).chosen
    assert checkpoint is not None
    assert checkpoint.step == 5000
