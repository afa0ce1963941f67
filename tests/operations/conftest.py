"""The supervised runs of tests/e2e, for the tests of operations."""

from tests.e2e.conftest import supervise

__all__ = ["supervise"]
