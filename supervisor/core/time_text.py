"""Times as text: a moment for programs, a span for people. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(t: float) -> str:
    """Return Unix seconds as RFC 3339, UTC, with milliseconds: `2026-09-21T14:13:20.250Z`."""
    return datetime.fromtimestamp(t, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span_text(seconds: float) -> str:
    """Return a time as a person would say it: `0.4 s`, `45 s`, `12 min`, `3 h 20 min`, `2 days 3 h`."""
    seconds = max(0.0, seconds)
    if seconds < 10:  # noqa: PLR2004 (tenths of a second tell something)
        return f"{seconds:.1f} s"
    for unit, name, less, part in ((86400, "days", 3600, "h"), (3600, "h", 60, "min")):
        if seconds >= (2 * unit if name == "days" else unit):
            rest = int(seconds % unit // less)
            return f"{int(seconds // unit)} {name}" + (f" {rest} {part}" if rest else "")
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"  # noqa: PLR2004 (two minutes)
