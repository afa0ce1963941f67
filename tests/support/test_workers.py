"""The tests of tests/support/workers.py: a whole run of pytest over files that pass, fail, warn and end their worker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]

CONFTEST = """
import os, pytest
from tests.support.workers import run_in_workers

def pytest_runtestloop(session):
    groups = {}
    for item in session.items:
        groups.setdefault(item.path, []).append(item)
    run_in_workers(session, list(groups.values()), 2)
    return True

@pytest.fixture(scope="session")
def built():
    yield os.getpid()
    print("taken down")
    with open("taken-down", "a") as file:
        file.write(f"{os.getpid()}\\n")
"""


def _run(place: Path, files: Mapping[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    for name, text in {"conftest.py": CONFTEST, **files}.items():
        (place / name).write_text(text)
    words = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--rootdir", ".", "--basetemp", "files", *options]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(words, cwd=place, env=environ, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603  ours


@pytest.mark.process
def test_what_happens_in_a_worker_is_reported_once_and_a_worker_that_ends_is_replaced(tmp_path: Path) -> None:
    files = {
        "test_built.py": "def test_first(built): pass\ndef test_second(built, tmp_path): assert tmp_path.parent.name in ('gw0', 'gw1')\n",
        "test_also_built.py": "def test_third(built): pass\n",
        "test_bad.py": "import warnings\n"
        "def test_wrong():\n    print('what it printed')\n    assert 1 == 2\n"
        "def test_warns(): warnings.warn('mind')\n",
        "test_a_killed.py": "import os\ndef test_before(): pass\ndef test_killed(): os.kill(os.getpid(), 9)\ndef test_after(): pass\n",
    }
    done = _run(tmp_path, files)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"2 failed, 6 passed, 1 warning in", done.stdout), done.stdout
    assert re.search(r"the worker gw\d ended with -9 while it ran test_a_killed.py::test_killed", done.stdout)
    assert "PASSED test_a_killed.py::test_after" in done.stdout
    assert "what it printed" in done.stdout
    assert "mind" in done.stdout
    taken_down = (tmp_path / "taken-down").read_text().split()
    assert len(taken_down) == len(set(taken_down)) >= 1, "the fixtures of the session live until the last test of their worker"


@pytest.mark.process
def test_a_run_that_stops_at_the_first_failure_leaves_no_worker(tmp_path: Path) -> None:
    wait = "import time, pathlib, os\ndef test_waits():\n    pathlib.Path('pid').write_text(str(os.getpid()))\n    time.sleep(600)\n"
    fails = (
        "import time, pathlib\npid = pathlib.Path('pid')\n"
        "def test_fails():\n    while not (pid.exists() and pid.read_text()): time.sleep(0.01)\n    assert False\n"
    )
    done = _run(tmp_path, {"test_a.py": wait, "test_b.py": fails}, "-x")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed in" in done.stdout
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()
