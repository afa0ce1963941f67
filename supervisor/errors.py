"""The one exception of ours: trouble of the supervisor's own, told so that a person can act on it.

A job's failure is never an exception; it is data (core/model.py).
"""

from __future__ import annotations

import difflib
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class ExitCode(IntEnum):
    """The exit codes that mean something (docs/exit-codes.md). 1-63 are the first failed rank's own; 128+n is a signal."""

    DONE = 0
    USAGE = 64
    DETERMINISTIC = 65
    BAD_NODE = 69
    BUG = 70
    REQUEUE = 75
    CONFIG = 78
    HANG = 124


class SuperviseError(Exception):
    """What failed, and the command that helps.

    message: "what failed: subject: cause", lower case. hint: an imperative sentence naming the command or setting.
    """

    def __init__(self, message: str, *, hint: str, exit_code: int = ExitCode.CONFIG) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = int(exit_code)

    def __str__(self) -> str:
        """Return both, as they are shown."""
        return f"{self.message}\n  {self.hint}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known name that `word` was probably meant to be, "" where none is like it: a wrong suggestion is worse than none."""
    found = difflib.get_close_matches(word, list(known), n=1)
    return found[0] if found else ""
