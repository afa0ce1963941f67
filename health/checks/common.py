"""Shared by the checks of host, disks and network: results for missing readings, and numbers for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.model import GONE, HOST, NOT_SUPPORTED, PERMISSION, CheckResult, Result

if TYPE_CHECKING:
    from health.model import Json, Readings


_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def unread(check: str, now: Readings, name: str, subject_name: str, subject: str = HOST) -> CheckResult | None:
    """Return the result for a reading that is missing or has a problem; None if it can be judged. what: its name for people."""
    reading = now.one(name, subject)
    if reading is None:
        return CheckResult(check, subject, Result.UNKNOWN, f"{subject_name}: not read")
    if not reading.problem:
        return None
    if reading.problem == NOT_SUPPORTED:
        return CheckResult(check, subject, Result.SKIPPED, f"{subject_name}: not visible here")
    words = {PERMISSION: "not permitted", GONE: "it is gone"}.get(reading.problem, reading.problem)
    return CheckResult(check, subject, Result.UNKNOWN, f"{subject_name}: {words}")


def number(row: dict[str, Json], key: str) -> float | None:
    """Return a number of a table, None where it has none."""
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else None


def size(count: float) -> str:
    """Return bytes as people read them, as `supervisor.core.units.bytes_text` writes them: `12 KiB`, `512 MiB`, `79.1 GiB`."""
    amount, power = float(count), 0
    while amount >= 1024 and power < len(_UNITS) - 1:  # noqa: PLR2004
        amount, power = amount / 1024, power + 1
    if power >= _UNITS.index("GiB"):
        return f"{amount:.1f} {_UNITS[power]}"
    text = f"{amount:.1f}".removesuffix(".0") if amount < 10 else f"{amount:.0f}"  # noqa: PLR2004 -- tenths of a small number
    return f"{text} {_UNITS[power]}"
