"""Where a command prints."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def printable(text: str) -> str:
    """Return foreign text as one line without control characters."""
    return _CONTROL.sub(" ", text.encode("utf-8", "backslashreplace").decode("utf-8")).strip()


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _warn(line: str) -> None:
    sys.stderr.write(f"{printable(line)}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """`write` prints a line, `warn` a line for people on stderr. `bars`: progress bars may be shown there (progress.py).

    `clean`: makes foreign text, such as a path, fit to be printed.
    """

    as_json: bool = False
    write: Callable[[str], None] = _write
    warn: Callable[[str], None] = _warn
    bars: bool = True
    clean: Callable[[str], str] = printable

    def row(self, row: dict[str, Any], text: str) -> None:
        """Print a result: the row as JSON, or the text."""
        self.write(json.dumps(row) if self.as_json else "\n".join(self.clean(line) for line in text.splitlines()))
