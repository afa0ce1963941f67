"""Moments as people of this node read them, in the zone of this machine."""

from __future__ import annotations

from datetime import UTC, datetime


def clock_text(t: float) -> str:
    """Return the local time of Unix seconds: `14:13:20`."""
    return local(t).strftime("%H:%M:%S")


def day_text(t: float) -> str:
    """Return the local day: `2026-09-21`."""
    return local(t).strftime("%Y-%m-%d")


def minute_text(t: float) -> str:
    """Return the local day and minute: `2026-09-21 14:13`."""
    return local(t).strftime("%Y-%m-%d %H:%M")


def second_text(t: float) -> str:
    """Return the local day and second: `2026-09-21 14:13:20`."""
    return local(t).strftime("%Y-%m-%d %H:%M:%S")


def zoned_text(t: float) -> str:
    """Return the local day and second with the zone, for a text that is read elsewhere: `2026-09-21 14:13:20 +0200`."""
    return local(t).strftime("%Y-%m-%d %H:%M:%S %z")


def local(t: float) -> datetime:
    """Return the moment in the zone of this machine, for who counts with it, as an axis of a chart does."""
    return datetime.fromtimestamp(t, UTC).astimezone()
