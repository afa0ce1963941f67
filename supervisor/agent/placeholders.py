"""Puts values into the words of a command: {resume} and the like."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def filled(word: str, values: Mapping[str, str]) -> str:
    """Return `word` with each placeholder replaced by its value (placeholder → value)."""
    return re.sub("|".join(map(re.escape, values)), lambda match: values[match[0]], word) if values else word


def filled_command(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the command with its placeholders replaced by their values."""
    return [filled(word, values) for word in command]
