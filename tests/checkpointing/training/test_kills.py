"""A trainer that is killed in the middle of a save leaves a whole checkpoint, and it is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.process


def kills(kind: str, number: int, directory: Path) -> list[dict[str, Any]]:
    words = [sys.executable, str(HERE / "killing.py"), kind, str(number), str(directory)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 -- our own program
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kind", ["save", pytest.param("sharded", marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_a_kill_in_the_middle_of_a_save_leaves_the_checkpoint_before(kind: str, number: int, tmp_path: Path) -> None:
    found = kills(kind, number, tmp_path / "ckpt")
    # the kill is placed by what the trainer has written: most must have come before the file had its name
    assert sum(one["cut_short"] for one in found) >= number / 2, found
    assert all(one["whole"] for one in found), found
    assert all(one["passed_over"] == [] for one in found), found
    assert all(one["step"] > one["start"] for one in found), found
