"""The user's and the distribution's own sitecustomize run as they would without us."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Attempt

pytestmark = pytest.mark.process

SHOW = "import sys; m = sys.modules.get('sitecustomize'); print(m and (m.__file__, m.__spec__.name, m.HERE))"


def _with(attempt: Attempt, folder: Path, code: str) -> tuple[str, str, int]:
    """Run with us, and check on the way that it is as without us."""
    mine = attempt.run("-c", code, env=attempt.env(pythonpath=str(folder)))
    theirs = attempt.run("-c", code, env=attempt.bare | {"PYTHONPATH": str(folder)})
    assert (mine.stdout, mine.stderr, mine.returncode) == (theirs.stdout, theirs.stderr, theirs.returncode)
    return mine.stdout, mine.stderr, mine.returncode


def test_the_users_runs_under_its_own_name(attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os, sys\nHERE = 'mine'\nprint('ran', os.environ.get('PYTHONPATH'), sys.path[0])\n")
    out, _, _ = _with(attempt, tmp_path, SHOW)
    assert "ran" in out
    assert "mine" in out
    assert len(attempt.beats()) == 1


def test_a_package_does_as_well(attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize").mkdir()
    (tmp_path / "sitecustomize" / "__init__.py").write_text("from . import other\nHERE = other.HERE\n")
    (tmp_path / "sitecustomize" / "other.py").write_text("HERE = 'within'\n")
    assert "within" in _with(attempt, tmp_path, SHOW)[0]


def test_without_one_there_is_none(attempt: Attempt, tmp_path: Path) -> None:
    assert _with(attempt, tmp_path, SHOW)[:2] == ("None\n", "")


def test_a_failing_sitecustomize_fails_as_usual(attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import nothing_of_this_name\n")
    _, err, _ = _with(attempt, tmp_path, "print('script')")
    assert "nothing_of_this_name" in err
    assert len(attempt.beats()) == 1


def test_usercustomize_runs_too(attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "usercustomize.py").write_text("print('user')\n")
    base = getattr(sys, "_base_executable", sys.executable)  # a virtual environment has no user site
    done = attempt.run("-c", "print('script')", env=attempt.env(pythonpath=str(tmp_path)), executable=base)
    assert (done.stdout, done.stderr) == ("user\nscript\n", "")
    assert len(attempt.beats()) == 1


def test_a_sitecustomize_with_an_exception_hook_leaves_the_error_file(attempt: Attempt, tmp_path: Path) -> None:
    hook = "import sys\nsys.excepthook = lambda *a: print('theirs', file=sys.stderr)\n"
    (tmp_path / "sitecustomize.py").write_text(hook)
    done = attempt.run("-c", "raise ValueError('told')", env=attempt.env(pythonpath=str(tmp_path)))
    assert done.stderr == "theirs\n"
    assert [error.message for error in attempt.errors().errors] == ["told"]
