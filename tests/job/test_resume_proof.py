"""The proof of a resume: it holds for one command, one script and one way of passing the checkpoint, and each start says which."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from supervisor.config.settings import Checkpoints, Settings
from supervisor.job import identity, resume_proof
from supervisor.job.resume_proof import ProvenCommand, ResumeProof

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = ["python", "train.py", "--bs", "8"]
T = time.mktime((2026, 11, 23, 12, 0, 0, 0, 0, -1))


def subject(place: Path, settings: Settings = Settings(), command: list[str] = COMMAND) -> ProvenCommand:  # noqa: B008  never changed
    return resume_proof.subject_of(settings, command, identity.command_digest(command), place)


def line(place: Path, now: ProvenCommand) -> str:
    return resume_proof.opening_line(resume_proof.read(place), now)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory, and the state directory at the same time, with a proof."""
    (tmp_path / "train.py").write_text("train()")
    resume_proof.write(tmp_path, ResumeProof(T, subject(tmp_path), ("checkpoint", "losses")))
    return tmp_path


def test_a_start_shows_the_date_of_the_proof_and_no_digest(place: Path) -> None:
    assert line(place, subject(place)) == "resume: proven on 2026-11-23 for this command (checkpoint, losses)"


TESTS = "`supervise drill resume -- CMD` tests it in about a minute"


def test_a_start_without_a_proof_names_the_command_that_makes_one(tmp_path: Path) -> None:
    assert line(tmp_path, subject(tmp_path)) == f"resume: not tested yet whether this command resumes; {TESTS}"


def test_a_change_makes_the_proof_void_and_is_named(place: Path) -> None:
    other = replace(Settings(), checkpoints=Checkpoints(paths=("ckpt/*.pt",)))

    def since(changed: str) -> str:
        return f"resume: not tested since {changed} changed (proven on 2026-11-23); {TESTS}"

    assert line(place, subject(place, command=[*COMMAND, "--x"])) == since("the command")
    assert line(place, subject(place, other)) == since("how a checkpoint is passed")
    (place / "train.py").write_text("train() or not")
    assert line(place, subject(place)) == since("the script or a file that the command names")
    both = "the command and the script or a file that the command names"
    assert line(place, subject(place, command=[*COMMAND, "--x"])) == since(both)


def test_a_script_that_cannot_be_read_proves_nothing(place: Path) -> None:
    (place / "train.py").unlink()
    assert "the script or a file that the command names changed" in line(place, subject(place))


def test_a_wrapper_or_a_configuration_of_the_command_is_part_of_the_proof(place: Path) -> None:
    command = ["bash", "run.sh", "--config=conf/small.yaml", "--out", "absent.json"]
    (place / "run.sh").write_text("python train.py")
    (place / "conf").mkdir()
    (place / "conf" / "small.yaml").write_text("resume: true")
    resume_proof.write(place, ResumeProof(T, subject(place, command=command), ("checkpoint",)))
    assert line(place, subject(place, command=command)).startswith("resume: proven")
    (place / "conf" / "small.yaml").write_text("resume: false")
    assert "a file that the command names changed" in line(place, subject(place, command=command))


def test_a_pipe_in_place_of_a_script_is_never_proven(place: Path) -> None:
    os.mkfifo(place / "pipe.py")
    resume_proof.write(place, ResumeProof(T, subject(place, command=["python", "pipe.py"]), ("checkpoint",)))
    assert "changed" in line(place, subject(place, command=["python", "pipe.py"]))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version": 2}', b"\xff", b'{"version": "x"}', b"[" * 99_999])
def test_a_file_that_is_no_proof_is_none(place: Path, content: bytes) -> None:
    (place / resume_proof.FILE_NAME).write_bytes(content)
    assert resume_proof.read(place) is None


def test_a_proof_that_is_gone_need_not_be_removed(place: Path) -> None:
    resume_proof.remove(place)
    resume_proof.remove(place)
    assert resume_proof.read(place) is None
