"""Rungs for networks and collectives, in real jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.conftest import Supervised

JOB = Path(__file__).parents[1] / "jobs" / "late_save.py"
COMMAND = ("torchrun", "--standalone", "--nproc-per-node=2", str(JOB), "5")

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_a_rank_that_saved_for_too_long_gets_a_longer_timeout_where_that_is_permitted(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*COMMAND, options=("--allow-network", "longer_timeout"))
    assert run.exit_code(deadline_s=100) == 0
    assert run.attempts() == 2
    assert "network (--allow-network): longer_timeout may act" in run.stderr
    assert "process group timeout" in run.stderr
    assert run.stdout.count("done after a timeout of 9.0") == 2
    run.wait_for_nothing_left()


def test_without_permission_the_card_names_the_option(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*COMMAND, options=("--max-attempts=2",))
    assert run.exit_code(deadline_s=100) == 75
    assert "longer_timeout is not enabled: --allow-network longer_timeout" in " ".join(run.ask("why", "1").stdout.split())
    run.wait_for_nothing_left()
