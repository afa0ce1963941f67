"""The one thing that a drill does to a user's files: a damaged copy in the place of a checkpoint, and the original back, or not."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.drill.faults import BIT, DrillOrder, _Drill
from supervisor.config.settings import Checkpoints, Settings

if TYPE_CHECKING:
    from pathlib import Path

GOOD = bytes(range(256)) * 40


@pytest.fixture
def last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The newest of two checkpoints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ckpt").mkdir()
    for t, name in enumerate(("old.pt", "last.pt")):
        path = tmp_path / "ckpt" / name
        path.write_bytes(GOOD)
        path.chmod(0o640)
        os.utime(path, (t, t))
    return tmp_path / "ckpt" / "last.pt"


@pytest.fixture
def drill(last: Path, tmp_path: Path) -> _Drill:
    settings = replace(Settings(), checkpoints=Checkpoints(paths=("ckpt/*.pt",)), cwd=str(tmp_path))
    bitrot_drill = _Drill(settings, ["true"], DrillOrder("bitrot", 1, 0, 1.0, finish=False, yes=True), tmp_path, tmp_path)
    assert bitrot_drill._damage()  # noqa: SLF001  what `_strike` does
    assert last.read_bytes() != GOOD
    return bitrot_drill


def test_one_bit_of_a_copy_of_the_newest_is_flipped_and_the_very_original_comes_back(
    last: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = last.stat()
    settings = replace(Settings(), checkpoints=Checkpoints(paths=("ckpt/*.pt",)), cwd=str(tmp_path))
    bitrot_drill = _Drill(settings, ["true"], DrillOrder("bitrot", 1, 0, 1.0, finish=False, yes=True), tmp_path, tmp_path)
    monkeypatch.setattr("pathlib.Path.read_bytes", None)  # a checkpoint is larger than our memory
    assert bitrot_drill._damage()  # noqa: SLF001
    monkeypatch.undo()
    damaged = (tmp_path / "ckpt" / "last.pt").read_bytes()
    assert [(at, old ^ new) for at, (old, new) in enumerate(zip(GOOD, damaged, strict=True)) if old != new] == [(len(GOOD) // 2, BIT)]
    assert (tmp_path / "ckpt" / "last.pt").stat().st_mode == before.st_mode
    bitrot_drill._put_back()  # noqa: SLF001
    after = (tmp_path / "ckpt" / "last.pt").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert sorted(path.name for path in (tmp_path / "ckpt").iterdir()) == ["last.pt", "old.pt"]


@pytest.mark.parametrize("how", ["in place", "by a rename"])
def test_what_the_job_wrote_there_meanwhile_is_not_replaced_by_the_original(
    drill: _Drill, last: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if how == "in place":
        last.write_bytes(b"newer training")
    else:
        last.with_name("new").write_bytes(b"newer training")
        last.with_name("new").replace(last)
    drill._put_back()  # noqa: SLF001
    assert last.read_bytes() == b"newer training"
    original = last.with_name(".drill-original-last.pt")
    assert original.read_bytes() == GOOD
    assert str(original) in capsys.readouterr().err


def test_a_copy_that_the_job_removed_leaves_the_place_to_the_original(drill: _Drill, last: Path) -> None:
    last.unlink()
    drill._put_back()  # noqa: SLF001
    assert last.read_bytes() == GOOD


def test_while_the_job_lives_nothing_is_put_back(drill: _Drill, last: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drill._job.pid = os.getpid()  # noqa: SLF001  a child that was not waited for
    drill._put_back()  # noqa: SLF001
    assert last.read_bytes() != GOOD
    assert last.with_name(".drill-original-last.pt").read_bytes() == GOOD
    assert "did not end" in capsys.readouterr().err
