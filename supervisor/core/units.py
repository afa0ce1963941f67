"""Amounts as people read them, each in one way: a span, an amount of bytes, a rate of bytes; and a moment for programs. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

_KIB = 1024
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def timestamp(t: float) -> str:
    """Return Unix seconds as RFC 3339, UTC, with milliseconds: `2026-09-21T14:13:20.250Z`."""
    return datetime.fromtimestamp(t, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span_text(seconds: float) -> str:
    """Return a time as a person would say it: `0.4 s`, `45 s`, `12 min`, `3 h 20 min`, `2 days 3 h`."""
    seconds = max(0.0, seconds)
    if seconds < 10:  # noqa: PLR2004 (tenths of a second tell something)
        return f"{seconds:.1f} s"
    for unit, name, less, less_name in ((86400, "days", 3600, "h"), (3600, "h", 60, "min")):
        if seconds >= (2 * unit if name == "days" else unit):
            rest = int(seconds % unit // less)
            return f"{int(seconds // unit)} {name}" + (f" {rest} {less_name}" if rest else "")
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"  # noqa: PLR2004 (two minutes)


def step_time_text(seconds: float) -> str:
    """Return the time of a step, or of a save, in three figures: `1.52 s`, `52.3 ms`. A tenth of it is a slow rank."""
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"  # noqa: PLR2004 (as people write it)


def bytes_text(count: float) -> str:
    """Return an amount of memory, of a disk or of a file: `0 bytes`, `12 KiB`, `1.5 MiB`, `512 MiB`, `79.1 GiB`, `3.0 TiB`."""
    size, power = float(count), 0
    while abs(size) >= _KIB and power < len(_UNITS) - 1:
        size, power = size / _KIB, power + 1
    if power >= _UNITS.index("GiB"):
        return f"{size:.1f} {_UNITS[power]}"
    text = f"{size:.1f}".removesuffix(".0") if abs(size) < 10 else f"{size:.0f}"  # noqa: PLR2004 (tenths of a small number)
    return f"{text} {_UNITS[power]}"


def rate_text(bytes_per_s: float) -> str:
    """Return how fast bytes move: `210 MiB/s`, `1.9 GiB/s`."""
    return f"{bytes_text(bytes_per_s)}/s"
