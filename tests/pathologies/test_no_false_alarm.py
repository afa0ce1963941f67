"""Jobs that do not hang are never called hung, though each hang is to be ended and the limits are ten times shorter.

Here are an example and what looks like waiting; tests/examples has the demo, and `pytest --eager-hangs tests/programs` runs each cell of
known-programs.md so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.jobs.working_names import WORKS
from tests.pathologies.hanging_jobs import taken
from tests.support.supervised import EAGER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=2"]

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.eager_hangs, pytest.mark.timeout(400)]


def test_an_example(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*TORCHRUN, str(EXAMPLES / "train_ddp.py"), "--steps=400")
    assert run.exit_code() == 0
    assert run.attempts() == 1


WORKING = Path(__file__).parents[1] / "jobs" / "working.py"


@pytest.mark.parametrize(("work", "at"), [(work, 0 if work == "child" else 40) for work in WORKS])
def test_work_in_one_place_is_not_taken_for_waiting(supervise: Callable[..., Supervised], work: str, at: int) -> None:
    """No GPU is among them: a kernel that computes for long is not to be had here (`make gpu`)."""
    short = {**EAGER, "SUPERVISE_HANG_PHASE_S": EAGER["SUPERVISE_HANG_TRAIN_S"]} if at == 0 else {}
    run = supervise(*TORCHRUN, str(WORKING), f"--work={work}", f"--at={at}", **short)
    assert run.exit_code(120) == 0
    assert run.attempts() == 1
    assert not taken(run, "HangConfirmed")
    assert taken(run, "HangSuspected") or work == "sleep", "it looked like a hang, or this shows nothing"
