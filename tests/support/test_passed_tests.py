"""A test that passed at a commit is not run again at it; after a failure, or a change, it is."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import preloaded

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
from tests.support.passed_tests import PassedTests

def pytest_configure(config):
    config.pluginmanager.register(PassedTests(config))
"""
TESTS = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(4))
def test_number(number):
    with open("runs", "a") as file:
        file.write(f"{number}\\n")
    assert not os.path.exists(f"fails-{number}")
    if os.path.exists(f"changes-{number}"):
        pathlib.Path("conftest.py").write_text(pathlib.Path("conftest.py").read_text() + "# changed")

def test_skipped():
    pytest.skip("not here")

@pytest.fixture
def ends_badly():
    yield
    assert not os.path.exists("fails-end")

def test_fixture(ends_badly):
    with open("runs", "a") as file:
        file.write("fixture\\n")
"""

pytestmark = pytest.mark.process


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a repository with tests that note each run, in one commit."""
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "x")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in [name for name in os.environ if name.startswith("PYTEST")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".gitignore").write_text("*\n!*.py\n!.gitignore\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_numbers.py").write_text(TESTS)
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "tests"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)  # noqa: S603, S607  as the user has it
    return tmp_path


def run(checkout: Path, *more: str) -> tuple[list[str], int, str]:
    """Run the tests; return which were run, the exit code and what was printed."""
    done = preloaded.run("-m", "pytest", "-q", "-p", "xdist", "-p", "no:cacheprovider", *more, imports=("pytest", "xdist.plugin"))
    runs = checkout / "runs"
    names = sorted(runs.read_text().split()) if runs.exists() else []
    runs.unlink(missing_ok=True)
    return names, done.returncode, done.stdout


ALL = ["0", "1", "2", "3", "fixture"]


def test_a_passed_test_is_left_out_until_a_change(checkout: Path) -> None:
    (checkout / "fails-2").touch()
    (checkout / "fails-end").touch()
    assert run(checkout, "-n", "1")[:2] == (ALL, 1)
    (checkout / "fails-2").unlink()
    names, code, printed = run(checkout, "-n", "0")
    assert (names, code) == (["2", "fixture"], 1), printed
    assert re.search(r"^3 tests were left out: they passed at this commit, [0-9a-f]{8}$", printed, re.MULTILINE), printed
    (checkout / "fails-end").unlink()
    assert run(checkout, "-n", "0")[:2] == (["fixture"], 0)
    assert run(checkout, "-n", "1")[:2] == ([], 0)
    (checkout / "test_numbers.py").write_text(f"{TESTS}# a change\n")
    assert run(checkout, "-n", "1")[:2] == (ALL, 0)
    names, code, printed = run(checkout, "-n", "0")
    assert (names, code) == (ALL, 0), "what is not committed is not remembered"
    assert "nothing is remembered: the tree has changes that are not committed" in printed


def test_a_tree_that_changes_under_the_run_is_remembered_as_no_commit(checkout: Path) -> None:
    (checkout / "changes-1").touch()
    assert run(checkout)[:2] == (ALL, 0)
    (checkout / "changes-1").unlink()
    subprocess.run(["git", "checkout", "-q", "."], cwd=checkout, check=True)  # noqa: S607  as the user has it
    assert run(checkout)[:2] == (ALL, 0)


def test_where_nothing_was_ever_collected_the_run_fails_as_always(checkout: Path) -> None:
    assert run(checkout, "-k", "no_such_test")[1] == pytest.ExitCode.NO_TESTS_COLLECTED
