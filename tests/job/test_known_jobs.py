"""Where a job was last started: the command of an alert finds it from any directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.cli.main import main
from supervisor.job import identity, known_jobs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def make_job(root: Path, job: str) -> Path:
    place = root / job / "nodes" / identity.node_name()
    place.mkdir(parents=True)
    (place / "journal.jsonl").touch()
    return root


def test_the_last_place_of_a_job_is_known_as_long_as_it_is_there(tmp_path: Path, environ: dict[str, str]) -> None:
    assert known_jobs.recall("bert", environ) is None
    for name in ("a b", "ö\n"):
        root = make_job(tmp_path / name, "bert")
        known_jobs.remember("bert", root, environ)
        assert known_jobs.recall("bert", environ) == root
    (root / "bert").rename(tmp_path / "gone")
    assert known_jobs.recall("bert", environ) is None
    (tmp_path / "state/supervise/jobs/bert").write_bytes(b"relative\0path")
    assert known_jobs.recall("bert", environ) is None
    assert known_jobs.recall("../bert", environ) is None


def test_without_a_usable_directory_nothing_is_known(tmp_path: Path) -> None:
    assert known_jobs.recall("bert", {"HOME": str(tmp_path)}) is None
    known_jobs.remember("bert", make_job(tmp_path / "here", "bert"), {"HOME": str(tmp_path), "XDG_STATE_HOME": "relative"})
    assert known_jobs.recall("bert", {"HOME": str(tmp_path)}) == tmp_path / "here"


def test_a_command_finds_the_job_from_any_directory_and_a_directory_that_is_named_wins(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    known_jobs.remember("bert", make_job(tmp_path / "there" / ".supervise", "bert"), environ)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(["status", "-v", "--job", "bert"]) == 0
    assert main(["status", "-v", "--job", "bert", "--state-dir", str(elsewhere)]) == 64
    assert main(["status", "-v", "--job", "other"]) == 64
    assert "no such job" in capfd.readouterr().err
