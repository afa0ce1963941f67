"""The runs of tests/e2e, and the outcome of each program without a fault, made once."""

from __future__ import annotations

import fcntl
import os
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.conftest import ledgers_add_up, pytest_runtest_makereport, supervise
from tests.programs.program_runs import outcome, run_bare

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.programs.table import TrainingProgram

__all__ = ["ledgers_add_up", "pytest_runtest_makereport", "supervise"]


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TrainingProgram], dict[str, Any]]:
    """Give a function that returns the outcome of a program without supervise and without a fault. All workers share the runs."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def outcome_of(program: TrainingProgram) -> dict[str, Any]:
        name = f"bare-{program.folder}-{zlib.crc32(repr(program.command).encode())}"
        place = shared / name
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return outcome(place) if (place / "final.json").exists() else run_bare(program, place)

    return outcome_of
