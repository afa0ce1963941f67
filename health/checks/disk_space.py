"""Is there room on every path that the job writes? Also inodes. Want of room for one checkpoint holds a start back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "disk_space"
NEEDS = ("disk",)
_MIB = 1 << 20


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each path's file system."""
    for reading in now.of("path.space"):
        yield _judged(now, reading.subject, limits)


def _judged(now: Readings, subject: str, limits: Thresholds) -> CheckResult:
    path, row = subject.removeprefix("path:"), now.table("path.space", subject)
    total, free = said.figure(row, "total"), said.figure(row, "free")
    inodes, inodes_free = said.figure(row, "inodes"), said.figure(row, "inodes_free")
    if total is None or free is None:
        return CheckResult(NAME, subject, Result.UNKNOWN, f"{path}: its room could not be read: {row.get('error') or 'not told'}")
    evidence = [f"{said.mib(free)} of {said.mib(total)} free"]
    evidence += [f"{inodes_free:.0f} of {inodes:.0f} inodes free"] if inodes and inodes_free is not None else []
    told, need = tuple(evidence), said.figure(row, "need") or 0.0
    clear = f"df -h {path}; du -xsh {path}/* | sort -h | tail"
    if free < need:
        why = f"{path} has {said.mib(free)} free, and one checkpoint takes {said.mib(need)}"
        return CheckResult(NAME, subject, Result.FAILED, why, told, Repair.CONFIGURE, clear, blocks=True)
    full = free < limits.disk_free_mib * _MIB or free < (1 - limits.disk_full_share) * total
    if full and total > limits.disk_free_mib * _MIB:  # one that is smaller as a whole was made so
        return CheckResult(NAME, subject, Result.FAILED, f"{path} is full: {said.mib(free)} free", told, Repair.CONFIGURE, clear)
    # file systems that make inodes as they need them (btrfs, many network ones) tell 0
    if inodes and inodes_free is not None and inodes_free < (1 - limits.disk_used_share) * inodes:
        none = inodes_free < (1 - limits.disk_full_share) * inodes
        why = f"{path} has {inodes_free:.0f} inodes left: no file can be made without one"
        return CheckResult(NAME, subject, Result.FAILED if none else Result.DEGRADED, why, told, Repair.CONFIGURE, f"df -i {path}")
    if total and free < (1 - limits.disk_used_share) * total:
        why = f"{path} is {1 - free / total:.0%} full: {said.mib(free)} free"
        return CheckResult(NAME, subject, Result.DEGRADED, why, told, Repair.CONFIGURE, clear)
    return CheckResult(NAME, subject, Result.OK, f"{path} has {said.mib(free)} free", told)
