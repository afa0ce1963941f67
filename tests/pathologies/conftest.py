"""The runs of tests/e2e, and the surroundings that a pathology needs."""

from __future__ import annotations

from tests.e2e.conftest import ledgers_add_up, pytest_runtest_makereport, supervise

__all__ = ["ledgers_add_up", "pytest_runtest_makereport", "supervise"]
