"""The runs of tests/e2e, and the outcome of each program without a fault, made once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.conftest import ledgers_add_up, pytest_runtest_makereport, supervise
from tests.programs.program_runs import run_bare

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.programs.table import TrainingProgram

__all__ = ["ledgers_add_up", "pytest_runtest_makereport", "supervise"]


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TrainingProgram], dict[str, Any]]:
    """Give a function that returns the outcome of a program without supervise and without a fault."""
    known: dict[str, dict[str, Any]] = {}

    def outcome_of(program: TrainingProgram) -> dict[str, Any]:
        if program.name not in known:
            known[program.name] = run_bare(program, tmp_path_factory.mktemp(program.name))
        return known[program.name]

    return outcome_of
