"""The runs of tests/e2e, and the surroundings that a pathology needs."""

from __future__ import annotations

from tests.e2e.conftest import pytest_runtest_makereport, supervise
from tests.programs.conftest import bare

__all__ = ["bare", "pytest_runtest_makereport", "supervise"]
