"""The runs of tests/e2e, for what is done with them here."""

from tests.e2e.conftest import supervise

__all__ = ["supervise"]
