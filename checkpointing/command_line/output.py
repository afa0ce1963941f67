"""Where a command prints."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from checkpointing.command_line.progress import ProgressBar, print_line, room
from checkpointing.io.progress_text import BYTES

Row = tuple[str, ...]
#: Control characters, ends of lines, and what turns round the rest of a line (Unicode TR9).
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")


def printable(text: str) -> str:
    """Return foreign text as one line without control characters."""
    return _CONTROL.sub(" ", text.encode("utf-8", "backslashreplace").decode("utf-8")).strip()


def _write(line: str) -> None:
    with room():
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _warn(line: str) -> None:
    with room():
        print_line(printable(line))


def aligned(_head: Row, rows: Sequence[Row]) -> str:
    """Return rows below each other, without a head; the last cell is as long as it is."""
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(len(_head) - 1)]
    lines = ("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), printable(row[-1])]) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """`write` prints a line, `warn` a line for people on stderr. `clean`: makes foreign text, such as a path, fit to be printed.

    `lay_out`: returns a table as text; its rows have as many cells as its head.
    """

    as_json: bool = False
    write: Callable[[str], None] = _write
    warn: Callable[[str], None] = _warn
    clean: Callable[[str], str] = printable
    lay_out: Callable[[Row, Sequence[Row]], str] = aligned

    def row(self, row: dict[str, Any], text: str) -> None:
        """Print a result: the row as JSON, or the text."""
        self.write(json.dumps(row) if self.as_json else "\n".join(self.clean(line) for line in text.splitlines()))

    def progress(self, name: str = "", total: float | None = None, unit: str = BYTES) -> ProgressBar:
        """Return the progress of something that may take long; a program that reads JSON is shown none."""
        return ProgressBar(name, total, unit=unit, wanted=not self.as_json, say=self.warn, clean=self.clean)
