"""The progress of a command that takes long (checkpointing/command_line/progress.py), with the lines and the words of `supervise`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.cli import stdio
from supervisor.report.text import clean

if TYPE_CHECKING:
    from checkpointing.command_line.progress import ProgressBar

#: The unit of work that is counted in bytes, and of a wait (checkpointing/io/progress_text.py).
BYTES: Final = "bytes"
SECONDS: Final = "s"


def progress(
    name: str = "", total: float | None = None, *, unit: str = BYTES, wanted: bool = True, beside_output: bool = False
) -> ProgressBar:
    """Return the progress of a command, to be entered; the arguments are those of `ProgressBar`."""
    from checkpointing.command_line.progress import ProgressBar  # noqa: PLC0415  not for --help

    return ProgressBar(name, total, unit=unit, wanted=wanted, beside_output=beside_output, say=stdio.say, clean=clean)
