"""Ranks that do not do the same thing, in real DDP jobs: what the card names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOB = Path(__file__).parents[1] / "jobs" / "unsynced.py"

pytestmark = [pytest.mark.process, pytest.mark.slow]


def command(how: str) -> list[str]:
    return ["torchrun", "--standalone", "--nproc-per-node=2", str(JOB), how]


def line_of(words: str) -> int:
    return next(number for number, text in enumerate(JOB.read_text().splitlines(), 1) if words in text)


def test_an_unused_parameter_is_named_on_the_card_after_one_attempt_more(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*command("unused"))
    assert run.exit_code(deadline_s=100) == 65
    assert run.attempts() == 2
    assert "Restarting as attempt 2 with TORCH_DISTRIBUTED_DEBUG -> INFO" in run.stderr.replace("→", "->")
    card = " ".join(run.stderr.partition("incident 2 of")[2].split())
    assert "DDP got no gradient for parameters extra.bias, extra.weight" in card
    assert "find_unused_parameters=True" in card
    run.wait_for_nothing_left()


def test_different_collectives_are_named_with_both_calls(supervise: Callable[..., Supervised]) -> None:
    run = supervise(
        *command("differ"),
        options=(
            "--set",
            "restart.max_attempts=1",
        ),
        TORCH_DISTRIBUTED_DEBUG="DETAIL",
    )
    run.exit_code(deadline_s=100)
    shown = " ".join(run.stderr.split())
    assert f"rank 0 called allreduce of shape [4] at {JOB}:{line_of('of rank 0')}" in shown
    assert f"rank 1 called broadcast of shape [4] at {JOB}:{line_of('of rank 1')}" in shown
    assert f"unsynced.py:{line_of('of rank 0')}: only ranks with `dist.get_rank() == 0`" in shown
    run.wait_for_nothing_left()


def test_sizes_that_differ_are_named_after_one_attempt_in_which_torch_compares_the_collectives(
    supervise: Callable[..., Supervised],
) -> None:
    run = supervise(*command("sizes"))
    assert run.exit_code(deadline_s=100) == 65
    assert run.attempts() == 2
    shown = " ".join(run.stderr.split())
    assert f"called allreduce of shape [8] at {JOB}:{line_of('of both')}" in shown
    assert f"called allreduce of shape [4] at {JOB}:{line_of('of both')}" in shown
    run.wait_for_nothing_left()
