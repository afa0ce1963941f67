"""The job that stands in for a training keeps the promises that other tests rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tests.support.few import few_rows

JOB = [sys.executable, str(Path(__file__).with_name("no_torch.py"))]

pytestmark = pytest.mark.process


def run(cwd: Path, *options: str, rank: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RANK": str(rank)}
    return subprocess.run([*JOB, *options], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603


def test_resumed_from_its_own_checkpoint_it_ends_with_the_same_digest(tmp_path: Path) -> None:
    run(tmp_path, "--steps=20", "--save-every=5", "--digest=whole").check_returncode()
    run(tmp_path, "--steps=20", "--resume=ckpt/step-000005.pt", "--digest=resumed").check_returncode()
    assert (tmp_path / "whole").read_text() == (tmp_path / "resumed").read_text()
    run(tmp_path, "--steps=21", "--digest=longer").check_returncode()
    assert (tmp_path / "whole").read_text() != (tmp_path / "longer").read_text()


def test_its_checkpoints_are_torch_files(tmp_path: Path) -> None:
    run(tmp_path, "--steps=3", "--save-every=3").check_returncode()
    path = tmp_path / "ckpt" / "step-000003.pt"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    assert torch.load(path, weights_only=True)["step"] == 3


@pytest.mark.parametrize(
    ("how", "code"),
    few_rows(
        [
            ("exit:42", 42),
            ("exception", 1),
            ("import-error", 1),
            ("segv", -signal.SIGSEGV),
            ("abort", -signal.SIGABRT),
            ("kill", -signal.SIGKILL),
            ("term", -signal.SIGTERM),
        ],
        3,
    ),
)
def test_a_fault_strikes_its_rank_before_its_step_and_once(tmp_path: Path, how: str, code: int) -> None:
    options = ["--steps=5", "--progress=progress", "--fail-rank=1", "--fail-at-step=3", f"--fail-how={how}", "--fail-once-file=failed"]
    assert run(tmp_path, *options, rank=0).returncode == 0
    assert not (tmp_path / "failed").exists()
    (tmp_path / "progress").unlink()
    assert run(tmp_path, *options, rank=1).returncode == code
    assert [line.split()[:2] for line in (tmp_path / "progress").read_text().splitlines()] == [["1", "1"], ["1", "2"]]
    assert run(tmp_path, *options, rank=1).returncode == 0
