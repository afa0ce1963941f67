"""Can every path be written, and how long does it take until it is on the disk? Read-only remounts and slow disks are found here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "disk_writes"
NEEDS = ("disk",)
_NO_ROOM = ("ENOSPC", "EDQUOT")


def check(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each path that answered."""
    for reading in now.of("path.space"):
        yield _judged(now, before, reading.subject, limits)


def _judged(now: Readings, before: Readings | None, subject: str, limits: Thresholds) -> CheckResult:
    path, row, mount = subject.removeprefix("path:"), now.table("path.write", subject), now.table("path.mount", subject)
    evidence = (f"{mount['kind']} of {mount['source']} on {mount['point']}",) if mount else ()
    if row.get("errno") == "EROFS" or now.table("path.space", subject).get("read_only") is True:
        was = before is not None and before.table("path.space", subject).get("read_only") is False
        why = f"{path} is read-only{', and was not when the job started: the kernel found it damaged' if was else ''}"
        remount = f"dmesg -T | grep -i -e remount -e 'I/O error'; mount -o remount,rw {mount.get('point', path)}"
        return CheckResult(NAME, subject, Result.FAILED, why, evidence, Repair.DRAIN if was else Repair.CONFIGURE, remount)
    if row.get("errno") in _NO_ROOM:
        why = f"{path}: {row.get('error')}"
        return CheckResult(NAME, subject, Result.FAILED, why, evidence, Repair.CONFIGURE, f"df -h {path}; quota")
    if "error" in row:
        repair, look = (Repair.DRAIN, "dmesg -T") if row.get("errno") == "EIO" else (Repair.CONFIGURE, f"ls -ld {path}")
        return CheckResult(NAME, subject, Result.FAILED, f"{path} cannot be written: {row['error']}", evidence, repair, look)
    seconds, size = said.figure(row, "seconds"), said.figure(row, "bytes")
    if seconds is None or size is None:
        return CheckResult(NAME, subject, Result.UNKNOWN, f"{path}: writing was not tried, or did not end")
    told = f"{said.mib(size)} in {seconds:.3f} s, of which {said.figure(row, 'sync_s') or 0.0:.3f} s until it was on the disk"
    if seconds > limits.write_s:
        why = f"{path} is slow: {told}"
        return CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.NONE, f"iostat -x 1 3; nfsiostat; ls -ld {path}")
    return CheckResult(NAME, subject, Result.OK, f"{path} can be written: {told}", evidence)
