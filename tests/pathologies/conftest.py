"""The runs of tests/e2e, and the surroundings that a pathology needs."""

from __future__ import annotations

from tests.e2e.conftest import pytest_runtest_makereport, supervise

__all__ = ["pytest_runtest_makereport", "supervise"]
