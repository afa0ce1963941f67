"""A shard that passed at a commit is not run again at it; after a failure, or a change, it is."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support import run_shards

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in which pytest is a line of shell that notes each run."""
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "x")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".gitignore").write_text("*\n!file\n!.gitignore\n")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$4" >> runs\necho "=== 3 passed of $4 ==="\n[ ! -e "fails-${4%/*}" ]\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file", ".gitignore"], ["commit", "-q", "-m", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)  # noqa: S603, S607  as the user has it
    return tmp_path


def runs(checkout: Path) -> list[str]:
    text = (checkout / "runs").read_text()
    (checkout / "runs").unlink()
    return text.split()


def test_what_passed_is_skipped_until_something_changes(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (checkout / "fails-3").touch()
    assert run_shards.main(["all", "--", "-x"], checkout) == 1
    assert runs(checkout) == ["1/4", "2/4", "3/4", "4/4"]
    (checkout / "fails-3").unlink()
    assert run_shards.main(["all", "--", "-x"], checkout) == 0
    assert runs(checkout) == ["3/4"]
    assert capfd.readouterr().out.endswith("".join(f"shard {n}/4: 3 passed of {n}/4\n" for n in range(1, 5)))
    assert run_shards.main(["2/4", "--"], checkout) == 0
    assert not (checkout / "runs").exists()
    (checkout / "file").write_text("2")
    assert run_shards.main(["2/4", "--"], checkout) == 0
    assert run_shards.main(["2/4", "--"], checkout) == 0
    assert runs(checkout) == ["2/4", "2/4"], "what is not committed is not remembered"
