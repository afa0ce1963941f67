"""Who holds a GPU's memory besides the job? A leftover of ours is swept by the supervisor; a stranger is named, and left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

NAME = "gpu_memory"
NEEDS = ("nvml",)


_MIB = 1 << 20


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each GPU's processes, and the memory that no process accounts for."""
    for subject in gpus.all_of(now):
        if now.one("gpu.processes", subject) is None or not gpus.answers(now, subject):
            continue
        unread = gpus.unread(NAME, now, "gpu.processes", subject)
        yield unread if unread is not None else _judged(now, limits, subject)


def _judged(now: Readings, limits: Thresholds, subject: str) -> CheckResult:
    rows, who = now.rows("gpu.processes", subject), gpus.called(now, subject)
    evidence = tuple(_told(row) for row in rows)
    leftovers = [row for row in rows if row.get("ours") == "cookie"]
    strangers = [row for row in rows if not row.get("ours") or row.get("ours") == "other job"]
    held_mib = sum(_mib(row) for row in strangers)
    if leftovers:
        pids = ", ".join(str(row.get("pid")) for row in leftovers)
        why = f"{who}: held by a leftover of this job, or by what inherited its mark: process {pids}"
        return CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.RESTART_JOB, f"ps -fp {pids.replace(', ', ',')}")
    if held_mib >= limits.stranger_memory_mib:
        pids = ",".join(str(row.get("pid")) for row in strangers)
        why = f"{who}: {held_mib:.0f} MiB are held by others: {'; '.join(_told(row) for row in strangers)}"
        return CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.NONE, f"ps -fp {pids}")
    used = now.table("gpu.memory", subject).get("used")
    used_mib = (used if isinstance(used, int) else 0) / _MIB
    if not rows and used_mib > limits.unaccounted_memory_mib:
        why = f"{who}: {used_mib:.0f} MiB are in use, and no process is seen: one of another container, or one that is dead and not gone"
        return CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.NONE, "fuser -v /dev/nvidia*")
    return CheckResult(NAME, subject, Result.OK, f"{who}: held by nobody else", evidence)


def _mib(row: dict[str, Json]) -> float:
    size = row.get("bytes")
    return (size if isinstance(size, int) else 0) / _MIB


def _told(row: dict[str, Json]) -> str:
    what = row.get("command") if row.get("there") else "not seen here: of another container"
    return f"process {row.get('pid')} ({what}): {_mib(row):.0f} MiB"
