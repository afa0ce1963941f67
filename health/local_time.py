"""A moment as text for the people of this machine. It reads the machine's time zone, so model.py cannot have it."""

from __future__ import annotations

from datetime import UTC, datetime


def stamped(t: float | None) -> str:
    """Return wall seconds as the beginning of a line: "2026-11-23 11:40:03+00:00  ", in local time; "" where the time is not known."""
    return "" if t is None else f"{datetime.fromtimestamp(t, UTC).astimezone().isoformat(' ', 'seconds')}  "
