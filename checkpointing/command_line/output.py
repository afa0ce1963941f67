"""Where a command prints, and the progress bar that it shows meanwhile."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_MIB: Final = 1 << 20
_SHOW_EVERY_S: Final = 0.2
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
    """`write` prints a line, `warn` a line for people on stderr, `show` a passing status line ("" takes it away)."""

    as_json: bool = False
    write: Callable[[str], None] = _write
    warn: Callable[[str], None] = _warn
    show: Callable[[str], None] = lambda _text: None
    clean: Callable[[str], str] = printable

    def row(self, row: dict[str, Any], text: str) -> None:
        """Print a result: the row as JSON, or the text."""
        self.write(json.dumps(row) if self.as_json else "\n".join(self.clean(line) for line in text.splitlines()))


class ProgressBar:
    """A status line with the share that is done. Several threads may call `shown`."""

    def __init__(self, out: Output, name: str) -> None:
        """Show nothing yet."""
        self._out, self._name = out, out.clean(name)[-50:]
        self._began = self._shown_at = time.monotonic()

    def shown(self, done: int, total: int) -> None:
        """Show how many bytes are done, a few times a second."""
        now = time.monotonic()
        if now - self._shown_at > _SHOW_EVERY_S or done >= total:
            self._shown_at = now
            rate = done / _MIB / max(now - self._began, 1e-3)
            filled = round(20 * done / max(total, 1))
            bar = "#" * filled + "-" * (20 - filled)
            self._out.show(f"{self._name} [{bar}] {done / _MIB:.0f}/{total / _MIB:.0f} MiB, {rate:.0f} MiB/s")

    def clear(self) -> None:
        """Take the line away."""
        self._out.show("")
