"""Shared by the checks of host, disks and network: results for missing readings, and numbers for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.model import GONE, HOST, NOT_SUPPORTED, PERMISSION, CheckResult, Result

if TYPE_CHECKING:
    from health.model import Json, Readings


def unread(check: str, now: Readings, name: str, what: str, subject: str = HOST) -> CheckResult | None:
    """Return the result for a reading that is missing or has a problem; None if it can be judged. what: its name for people."""
    reading = now.one(name, subject)
    if reading is None:
        return CheckResult(check, subject, Result.UNKNOWN, f"{what}: not read")
    if not reading.problem:
        return None
    if reading.problem == NOT_SUPPORTED:
        return CheckResult(check, subject, Result.SKIPPED, f"{what}: not visible here")
    words = {PERMISSION: "not permitted", GONE: "it is gone"}.get(reading.problem, reading.problem)
    return CheckResult(check, subject, Result.UNKNOWN, f"{what}: {words}")


def number(row: dict[str, Json], key: str) -> float | None:
    """Return a number of a table, None where it has none."""
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else None


def size(count: float) -> str:
    """Return bytes as people read them."""
    size, unit = count / (1 << 20), "MiB"
    if size >= 10240:  # noqa: PLR2004 -- five digits are too many
        size, unit = size / 1024, "GiB"
    elif 0 < size < 1:  # "0 MiB free, and one checkpoint takes 0 MiB" would say nothing
        size, unit = size * 1024, "KiB"
    return f"{size:.0f} {unit}"
