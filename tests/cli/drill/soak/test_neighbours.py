"""A soak is refused where another job of supervise runs, or where other processes use the GPUs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from health.model import Reading, Readings
from supervisor.cli import main
from supervisor.cli.drill.soak import neighbours
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from pathlib import Path

NO_GPU = Readings(())


def process(proc: Path, pid: int, *words: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cmdline").write_bytes("\0".join(words).encode() + b"\0")


def test_the_guardian_of_another_job_is_found_whoever_installed_it(tmp_path: Path) -> None:
    process(tmp_path, 4, "/usr/bin/vim", "supervisor/guardian")
    process(tmp_path, 5, "/usr/bin/python3", "train.py")
    process(tmp_path, 70, "/opt/venv/bin/python", "-I", "-S", "/opt/venv/lib/supervisor/guardian", "--link-fd", "3")
    (tmp_path / "9").mkdir()  # a process that ended meanwhile
    assert list(neighbours.guardians(tmp_path)) == [70]
    with pytest.raises(SuperviseError, match=r"another job of supervise runs on this node \(process 70\)") as refusal:
        neighbours.refuse(tmp_path, NO_GPU)
    assert refusal.value.exit_code == 64


def test_a_node_without_another_job_is_free(tmp_path: Path) -> None:
    process(tmp_path, 5, "/usr/bin/python3", "-m", "supervisor", "--", "torchrun", "train.py")
    neighbours.refuse(tmp_path, NO_GPU)


def test_other_processes_on_the_gpus_are_named(tmp_path: Path) -> None:
    row = {"pid": 4711, "bytes": 1 << 30, "there": True, "command": "python", "user": 1000, "ours": ""}
    unseen = {"pid": 12, "bytes": 1 << 30, "there": False, "command": "", "user": None, "ours": ""}
    gpus = Readings((Reading("nvml", "gpu:GPU-1", "gpu.processes", [row]), Reading("nvml", "gpu:GPU-2", "gpu.processes", [row, unseen])))
    with pytest.raises(SuperviseError, match=r"\(python, pid 4711, a process that is hidden from here, pid 12\)"):
        neighbours.refuse(tmp_path, gpus)


def test_the_soak_itself_is_refused_beside_another_job_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    guardian = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "lib/supervisor/guardian", "--link-fd"]
    with subprocess.Popen(guardian, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:  # noqa: S603  our own interpreter
        assert other.stdout is not None
        other.stdout.readline()
        assert main.main(["drill", "soak", "--", "touch", "started"]) == 64
        other.communicate()
    assert "another job of supervise runs on this node" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
