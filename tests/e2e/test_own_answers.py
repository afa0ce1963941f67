"""What a failure shows of the program: the same place from scratch, an exit code of its own at once, a size that keeps the global batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import words_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.conftest import Supervised

JOBS = Path(__file__).parents[1] / "jobs"
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node"]
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


def overrides(run: Supervised) -> list[dict[str, str]]:
    """Return what each attempt was begun with in place of the command's own."""
    lines = [json.loads(line) for path in run.state.glob("*/nodes/*/supervise.log") for line in path.read_text().splitlines()]
    return [dict(line["overrides"]) for line in lines if line["event"] == "attempt.begun"]


def script(place: Path, text: str) -> str:
    path = place / "train.py"
    path.write_text(text)
    return str(path)


@pytest.mark.slow  # tests/scenarios shows it
def test_the_same_step_from_scratch_without_a_step_counter_is_deterministic_at_the_second_time(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    run = supervise(*TORCHRUN, "1", script(tmp_path, SGD.format(at=30)), **FAST)
    assert run.exit_code(deadline_s=90) == 65
    assert run.attempts() == 2
    assert "the same error came again" in " ".join(run.stderr.split())


@pytest.mark.slow
def test_another_step_from_scratch_is_another_place(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    at = "{1: 10, 2: 50}.get(int(os.environ['SUPERVISE_JOB_ATTEMPT']))"
    run = supervise(*TORCHRUN, "1", script(tmp_path, SGD.format(at=at)), **FAST)
    assert run.exit_code(deadline_s=90) == 0
    assert run.attempts() == 3


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


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_batch_of_12_goes_to_the_next_size_that_keeps_the_global_batch_on_any_number_of_ranks(
    supervise: Callable[..., Supervised], tmp_path: Path, ranks: int
) -> None:
    """Of 12 samples in one rank about 4 fit: 6 is tried or ruled out by the message, 4 with three times the accumulation suffices."""
    memory = [str(JOBS / "memory.py"), "--room-mib=31", "--batch-size", "12", "--steps=6", "--short=3"]
    options = ("--knob", "batch_size=--batch-size", "--knob", "grad_accum:1=--accum", "--checkpoints", "ckpt/*.pt")
    run = supervise(*TORCHRUN, str(ranks), *memory, options=(*options, "--resume-args", "--resume {resume}"), **FAST)
    assert run.exit_code(deadline_s=150) == 0
    tried = [(int(one["batch_size"]), int(one["grad_accum"])) for one in overrides(run) if one]
    assert tried[-1] == (4, 3)
    assert set(tried) <= {(6, 2), (4, 3)}
    made = [(int(step), int(micro), int(accum)) for step, micro, accum, *_ in words_of(tmp_path / "losses")]
    assert {micro * accum for _, micro, accum in made} == {12}
    assert sorted({step for step, *_ in made}) == [1, 2, 3, 4, 5, 6]
    assert (6, 4, 3) in made
