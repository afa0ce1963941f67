"""What a rank raises before its first step: a mistake of the program costs no restart, what may pass by itself costs one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

pytestmark = pytest.mark.process

STARTED = "import os, sys\nfirst = not os.path.exists('starts')\nopen('starts', 'a').write('x')\n"
STEPS = "for step in range(1, 6): print(f'step {step}/5 loss 2.{step}', flush=True)\n"
#: What slurmstepd writes into the output of a step, here printed by the program: no scheduler ended anything.
CANCELLED = "slurmstepd: error: *** JOB 99 ON n2 CANCELLED AT 2026-11-30T01:02:03 DUE TO TIME LIMIT ***"


@pytest.mark.parametrize(
    ("fails", "exit_code", "starts"),
    [
        pytest.param("build_modle()\n", 1, 1, marks=pytest.mark.slow),
        ("if first: open('/nowhere/comes_late.json')\n", 0, 2),
        pytest.param(STEPS + f"if first: print({CANCELLED!r}, file=sys.stderr); sys.exit(1)\n", 0, 2, marks=pytest.mark.slow),
    ],
    ids=["typo", "file that comes late", "words of a scheduler"],
)
def test_a_restart_is_given_where_it_may_help(
    supervise: Callable[..., Supervised], tmp_path: Path, fails: str, exit_code: int, starts: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(STARTED + fails)
    run = supervise(sys.executable, str(script))
    assert run.exit_code() == exit_code
    assert len((run.place / "starts").read_text()) == starts
    run.wait_for_nothing_left()
