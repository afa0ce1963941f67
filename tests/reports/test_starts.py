"""Reports of starts: programs that start the ranks by themselves, addresses that lead nowhere, schedulers and wrappers around the job."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.clusters import slurm
from supervisor.job.identity import job_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Task 0 of an array, whose own number is that of the array, and task 1.
TASKS = {
    "100_0": {"SLURM_JOB_ID": "100", "SLURM_ARRAY_JOB_ID": "100", "SLURM_ARRAY_TASK_ID": "0"},
    "100_1": {"SLURM_JOB_ID": "101", "SLURM_ARRAY_JOB_ID": "100", "SLURM_ARRAY_TASK_ID": "1"},
}


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put a scontrol on PATH that keeps its words in `calls`, and then runs what stands in `then`."""
    program = tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n. {tmp_path}/then\n')
    program.chmod(0o755)
    (tmp_path / "then").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("task", TASKS)
def test_lightning_15022_a_task_of_an_array_is_requeued_alone(scontrol: Path, task: str) -> None:
    assert slurm.requeue(scontrol, TASKS[task]) == 0
    assert (scontrol / "calls").read_text() == f"requeue {task}\n"


def test_lightning_15022_each_task_of_an_array_is_a_job_of_its_own(tmp_path: Path) -> None:
    assert {job_name("", environ, tmp_path, ["train"]).name for environ in TASKS.values()} == {"slurm-100_0", "slurm-100_1"}


def test_submitit_1713_a_controller_that_does_not_answer_holds_the_requeue_back_for_no_longer_than_its_deadline(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm, "_SCONTROL_S", 0.2)
    (scontrol / "then").write_text("exec sleep 1000\n")
    assert slurm.requeue(scontrol, TASKS["100_0"]) == 1
    assert "does not requeue job 100_0" in capsys.readouterr().err
