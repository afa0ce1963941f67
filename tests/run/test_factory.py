"""What the factory does beyond making parts: a tidy scratch directory, and fences that tell when they cannot be kept."""

from __future__ import annotations

import dataclasses
import queue
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.retention import free_space
from supervisor.checkpoints.job import JobCheckpoints
from supervisor.checkpoints.recording.reports import CheckpointAlert, CheckpointReport, CheckpointTrouble
from supervisor.config.settings import Checkpoints, Settings
from supervisor.core.actions import Quarantine
from supervisor.core.model import Gpu
from supervisor.core.values import replace
from supervisor.job.job import Job
from supervisor.run.factory import JobFactory
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path) -> Job:
    state, scratch = tmp_path / "state", tmp_path / "scratch"
    state.mkdir()
    scratch.mkdir()
    settings = dataclasses.replace(Settings(), checkpoints=Checkpoints(paths=("ckpt/*.pt",)))
    return Job("train", "run-1", "node", ("true",), tmp_path, {}, settings, state, scratch, "cookie")


@pytest.mark.parametrize("continues", [True, False])
def test_files_that_a_killed_supervisor_left_in_memory_are_not_ours(job: Job, continues: bool) -> None:  # noqa: FBT001  a parameter
    for name in ("save-now", "wants-save"):
        (job.scratch / name).touch()
    job.attempt_dir(1).mkdir()
    (job.attempt_dir(1) / "loads-0.jsonl").write_text('{"path": "old.pt"}\n')
    JobFactory(job, (), print).clear_scratch(keep_attempts=continues)
    assert sorted(path.name for path in job.scratch.iterdir()) == (["attempt-0001"] if continues else [])


def test_rejections_that_cannot_be_recorded_are_kept_and_reported(job: Job) -> None:
    (job.state / "checkpoints").write_text("a file is in the way")
    (job.cwd / "ckpt").mkdir()
    (job.cwd / "ckpt" / "step-3.pt").write_bytes(b"PK\x03\x04 torn")
    checkpoints = JobCheckpoints(job, print)
    assert checkpoints.problems == ()
    assert [why for _, why in checkpoints.select(1.0, 1).torn]
    problem, *_ = checkpoints.problems
    assert problem.startswith("the checkpoints' catalogue could not be written")
    assert str(job.state / "checkpoints") in problem


def save(path: Path, step: int) -> None:
    torch.save({"step": step, "w": torch.ones(4)}, path)


def test_a_poisoned_path_is_not_handed_out_whatever_is_written_there(job: Job) -> None:
    directory = job.cwd / "ckpt"
    directory.mkdir()
    save(directory / "old-3.pt", 3)
    last = directory / "last.pt"
    for step in (9, 6):
        save(last, step)
        selected = JobCheckpoints(job, print).select(1.0, 1, (str(last),))
        assert selected.chosen is not None
        assert selected.chosen.path == str(directory / "old-3.pt")
        assert [(path, why.partition(":")[0]) for path, why in selected.refused] == [(str(last), "rejected")]
    free = JobCheckpoints(job, print).select(1.0, 1)
    assert free.chosen is not None
    assert (free.chosen.path, free.chosen.step) == (str(last), 6)
    assert [(ref.path, ref.step, ref.level) for ref in free.older] == [(str(directory / "old-3.pt"), 3, "")]


def test_a_gpu_that_is_put_out_of_use_is_listed_so_from_then_on_by_every_job_of_the_directory(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '0, GPU-a, 00000000:3B:00.0, T4'\necho '1, GPU-b, 00000000:5E:00.0, T4'\n")
    program.chmod(0o755)

    def of(name: str) -> JobFactory:
        state = tmp_path / "state" / name / "nodes" / "node"
        environ = {"PATH": f"{program.parent}:/usr/bin:/bin"}
        return JobFactory(Job(name, "r", "node", ("true",), tmp_path, environ, Settings(), state, tmp_path, "cookie"), (), print)

    this_job = of("one")
    first, second = Gpu(0, "GPU-a", "0000:3b:00.0"), Gpu(1, "GPU-b", "0000:5e:00.0")
    assert this_job.gpus() == (first, second)
    program.unlink()  # the driver does not answer any more
    assert this_job.quarantine(Quarantine(1, second, "xid 79", "NVRM")) == (first, replace(second, quarantined="xid 79"))
    assert [(entry.uuid, entry.job) for entry in of("another").held_gpus()] == [("GPU-b", "one")]


def test_where_no_gpu_could_be_listed_none_is_reported_there_when_one_is_put_out_of_use(job: Job) -> None:
    factory = JobFactory(job, (), print)  # a takeover, whose nvidia-smi did not answer
    assert factory.quarantine(Quarantine(1, Gpu(1, "GPU-b", ""), "xid 79", "NVRM")) == ()
    assert [entry.uuid for entry in factory.held_gpus()] == ["GPU-b"]


@pytest.mark.parametrize(
    ("command", "nproc", "world"),
    [
        ("torchrun --nproc-per-node=4 train.py --nproc-per-node=9", None, 4),
        ("torchrun --nproc_per_node 4 train.py", 3, 3),
        ("torchrun train.py", None, 1),
        ("torchrun --nproc-per-node=gpu train.py", None, None),
        ("torchrun --nproc-per-node=4 --nnodes=2 train.py", None, None),
        ("deepspeed train.py", None, None),
    ],
)
def test_the_world_of_an_attempt_is_known_where_one_node_says_it_in_figures(job: Job, command: str, nproc: int | None, world: int) -> None:
    assert JobFactory(replace(job, command=tuple(command.split())), (), print).world_size(nproc) == world


def test_a_disk_without_room_for_the_next_checkpoints_is_reported_once_and_so_is_its_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: queue.SimpleQueue[CheckpointReport] = queue.SimpleQueue()
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    texts: list[str] = []

    def short(directory: str, _n_bytes: int) -> free_space.Forecast:
        asked.put(directory)
        room = free_space.Room.SHORT if asked.qsize() + len(texts) < 3 else free_space.Room.ENOUGH
        return free_space.Forecast(directory, room, 3 << 20, 1, 5 << 20)

    monkeypatch.setattr(free_space, "forecast", short)
    checkpoints = JobCheckpoints(
        replace(job, settings=dataclasses.replace(job.settings, checkpoints=Checkpoints(paths=("ckpt/*.pt",)))), reports.put
    )
    watcher = checkpoints.watcher()
    assert watcher is not None
    (job.cwd / "ckpt").mkdir()
    watcher.start()
    for step in (1, 2, 3):
        save(job.cwd / "ckpt" / f"step-{step}.pt", step)
        texts.append(asked.get(timeout=PATIENCE_S))
    assert texts == [str(job.cwd / "ckpt")] * 3
    assert watcher.stop(PATIENCE_S)
    alerts = []
    while not reports.empty():
        report = reports.get()
        alerts += [report] if isinstance(report, CheckpointAlert) else []
    text = f"{job.cwd}/ckpt is nearly full (5 MiB free): the next checkpoint (3 MiB) fits, and the one after it will not"
    over = CheckpointAlert(CheckpointTrouble.DISK_FILLING, f"there is room again in {job.cwd}/ckpt", is_over=True)
    assert alerts == [CheckpointAlert(CheckpointTrouble.DISK_FILLING, text), over]
