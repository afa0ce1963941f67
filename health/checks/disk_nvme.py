"""Are all NVMe disks there and alive? One that is gone since the job's start, or that the kernel gave up, is a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

NAME = "disk_nvme"
NEEDS = ("nvme",)
#: On their way to live: a reset takes seconds.
_PASSING = ("new", "resetting", "connecting")


def check(now: Readings, before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge the list."""
    unread = said.unread(NAME, now, "nvme.controllers", "NVMe disks")
    if unread is not None:
        yield unread
        return
    rows = now.rows("nvme.controllers")
    lost = {_who(row) for row in before.rows("nvme.controllers")} - {_who(row) for row in rows} if before is not None else set()
    found = [
        CheckResult(NAME, HOST, Result.FAILED, f"NVMe disk {who} is gone since the job started", (), Repair.REPLACE, "nvme list; dmesg -T")
        for who in sorted(lost)
    ]
    for row in rows:
        state = row.get("state")
        if state in ("live", ""):  # kernels before 4.9 tell no state
            continue
        result, repair = (Result.DEGRADED, Repair.NONE) if state in _PASSING else (Result.FAILED, Repair.REPLACE)
        why = f"NVMe disk {_who(row)} is {state}"
        found.append(CheckResult(NAME, HOST, result, why, (f"model {row.get('model')}",), repair, "nvme list; dmesg -T | grep nvme"))
    if not rows and not found:
        yield CheckResult(NAME, HOST, Result.SKIPPED, "no NVMe disk is here")
    yield from found or ([CheckResult(NAME, HOST, Result.OK, f"{len(rows)} NVMe disks are live")] if rows else [])


def _who(row: dict[str, Json]) -> str:
    return f"{row.get('name')} ({row.get('address')})" if row.get("address") else str(row.get("name"))
