"""A real program whose ranks are killed ten times: out of standbys it trains as one run without a kill, to the last bit."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.test_standby import logged, ready
from tests.programs.program_runs import LONGEST_S, environment, held, lay_out, outcome
from tests.programs.table import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.programs.table import TrainingProgram
    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1200)]
#: After these steps a rank is killed, the first and the last in turns; there is a save after 10, 20 and 30.
KILLS = (11, 12, 14, 16, 18, 21, 24, 26, 32, 36)


def _killed(start: Callable[..., Supervised], program: TrainingProgram, place: Path) -> Supervised:
    """Run the program, and kill a rank at each of KILLS."""
    ranks = [0 if number % 2 else program.world - 1 for number in range(len(KILLS))]
    words = " ".join(f"hold:{step}:{rank}" for step, rank in zip(KILLS, ranks, strict=True))
    options = [*program.options, "--standby", "on"]
    budget = {"SUPERVISE_RESTART_INTENSITY": "50"}
    run = start(
        *program.command,
        options=options,
        place=lay_out(program, place),
        PROGRAM_FAULT=words,
        **environment(program),
        **budget,
    )
    for attempt, step in enumerate(KILLS, 1):
        pid = held(run, f"hold:{step}")
        ready(run, attempt, program.world)
        os.kill(pid, signal.SIGKILL)
    assert run.exit_code(deadline_s=LONGEST_S) == 0
    return run


def test_ten_restarts_out_of_standbys_train_as_one_run(
    supervise: Callable[..., Supervised], bare: Callable[[TrainingProgram], dict[str, Any]], tmp_path: Path
) -> None:
    program = next(candidate for candidate in PROGRAMS if candidate.name == "nanogpt-torchrun")
    warm = _killed(supervise, program, tmp_path)
    used = [(row["ranks"], row["cold"]) for row in logged(warm, "standby.used")]
    assert used == [(list(range(program.world)), "")] * len(KILLS)
    assert warm.attempts() == len(KILLS) + 1
    assert outcome(warm.place) == bare(program)
