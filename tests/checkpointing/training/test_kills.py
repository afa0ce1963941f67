"""A trainer that is killed in the middle of a save leaves a whole checkpoint, and it is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import preloaded
from tests.support.few import few_rows

HERE = Path(__file__).parent

pytestmark = pytest.mark.process


def kills(kind: str, number: int, directory: Path) -> list[dict[str, Any]]:
    done = preloaded.run(str(HERE / "killing.py"), kind, str(number), str(directory))
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("kind", "number"), [("save", 2), *few_rows([("save", 40), ("sharded", 40)], 0)])
def test_a_kill_in_the_middle_of_a_save_leaves_the_checkpoint_before(kind: str, number: int, tmp_path: Path) -> None:
    reports = kills(kind, number, tmp_path / "ckpt")
    # the kill is placed by what the trainer has written: most must have come before the file had its name
    assert sum(report["cut_short"] for report in reports) >= number / 2, reports
    assert all(report["whole"] for report in reports), reports
    assert all(report["passed_over"] == [] for report in reports), reports
    assert all(report["step"] > report["start"] for report in reports), reports
