"""Reads how far each rank was, and when, before its first step (`start-<local rank>.json`, docs/reference/pages.md)."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: In the order in which they come. `first_step` is always there.
MOMENTS = ("hello", "imported", "grouped", "loading", "loaded", "first_step")


def read(directory: Path, ranks: int) -> dict[str, int] | None:
    """Return when the last rank came to each moment, CLOCK_MONOTONIC ns; None while fewer than `ranks` have made their first step."""
    rows = []
    for path in directory.glob("start-*.json"):
        with contextlib.suppress(OSError, ValueError):  # a file that is just being written, or of another program
            row = json.loads(path.read_bytes())
            rows.append({name: row[name] for name in MOMENTS if type(row.get(name)) is int} if isinstance(row, dict) else {})
    if len(rows) < max(ranks, 1) or any("first_step" not in row for row in rows):
        return None
    return {name: max(row[name] for row in rows if name in row) for name in MOMENTS if any(name in row for row in rows)}
