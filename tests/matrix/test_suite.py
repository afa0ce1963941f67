"""The matrix (run.py): its tests exist, and a row that cannot be had is named and fails nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.matrix import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", run.SUITE)
def test_each_test_of_the_suite_is_there(name: str) -> None:
    file, _, function = name.partition("[")[0].partition("::")
    assert f"def {function}" in (run.ROOT / file).read_text(encoding="utf-8")


@pytest.mark.slow
def test_pytest_collects_the_suite_with_the_ids_that_it_names() -> None:
    collects = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *run.SUITE]
    done = subprocess.run(collects, cwd=run.ROOT, capture_output=True, text=True, check=False)  # noqa: S603  our own tests
    assert done.returncode == 0, done.stdout


def test_a_python_that_is_not_here_is_named_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", "3.99:2.13", f"--logs={tmp_path}"])
    assert run.main() == 0
    assert capsys.readouterr().out == "| 3.99 | 2.13 | not here: no python3.99 on PATH |\n"


@pytest.mark.parametrize(
    ("wanted", "version"), [("2.1", "2.1.2"), ("2.10", "2.10.0"), ("2.13", "2.13.0+cpu"), ("2.99", "")], ids=["2.1", "2.10", "2.13", "none"]
)
def test_a_version_is_the_newest_of_its_name(wanted: str, version: str) -> None:
    assert run.newest("torch (2.13.0)\nAvailable versions: 2.13.0+cpu, 2.13.0, 2.10.0, 2.1.2, 2.1.1\n", wanted) == version
