"""A step without an answer, as if a ladder did not have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.values import replace
from supervisor.strategies import LADDER_STEPS
from supervisor.strategies.ladder_step import nothing_missing

if TYPE_CHECKING:
    import pytest


def silence(patch: pytest.MonkeyPatch, name: str) -> None:
    """Let the step of this name have no answer to any situation."""
    patch.setitem(LADDER_STEPS, name, replace(LADDER_STEPS[name], propose=lambda _situation: None, missing=nothing_missing))
