"""What a failure shows of the program: the same place from scratch, or an exit code of its own at once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

FAST = {"_SUPERVISE_TEST_INTERVALS": "0.04"}

#: SGD keeps no count of its steps, and nothing is saved: each attempt begins from scratch.
SGD = """
import os, torch
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(1, 61):
    (weight * weight).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == {at}:
        raise ValueError("bad row")
"""

pytestmark = pytest.mark.process


def script(place: Path, text: str) -> str:
    path = place / "train.py"
    path.write_text(text)
    return str(path)


@pytest.mark.slow  # tests/scenarios shows it
def test_the_same_step_from_scratch_without_a_step_counter_is_deterministic_at_the_second_time(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    run = supervise(sys.executable, script(tmp_path, SGD.format(at=30)), **FAST)
    assert run.exit_code(deadline_s=90) == 65
    assert run.attempts() == 2
    assert "the same error came again" in " ".join(run.stderr.split())


@pytest.mark.slow
def test_a_failure_at_another_step_from_scratch_is_another_place(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    at = "{1: 10, 2: 50}.get(int(os.environ['SUPERVISE_JOB_ATTEMPT']))"
    run = supervise(sys.executable, script(tmp_path, SGD.format(at=at)), **FAST)
    assert run.exit_code(deadline_s=90) == 0
    assert run.attempts() == 3


@pytest.mark.slow  # test_no_way_out.py shows it at a job that is started again
def test_a_command_that_leaves_with_its_own_code_at_once_ends_with_it_after_two_attempts(supervise: Callable[..., Supervised]) -> None:
    run = supervise("sh", "-c", "echo no licence left; exit 7", **FAST)
    assert run.exit_code() == 7
    assert run.attempts() == 2
    assert "it is the program's own answer" in " ".join(run.stderr.split())


@pytest.mark.slow
def test_a_command_that_leaves_with_another_code_each_time_has_not_given_an_answer(supervise: Callable[..., Supervised]) -> None:
    run = supervise("sh", "-c", "exit $((5 + SUPERVISE_JOB_ATTEMPT))", **FAST)
    assert run.exit_code() == 1
    assert run.attempts() > 2
