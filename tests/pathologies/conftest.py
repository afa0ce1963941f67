"""The runs of tests/e2e, and the surroundings that a pathology needs."""

from __future__ import annotations

from tests.e2e.conftest import ledgers_add_up, pytest_runtest_makereport, supervise
from tests.programs.conftest import bare

__all__ = ["bare", "ledgers_add_up", "pytest_runtest_makereport", "supervise"]
