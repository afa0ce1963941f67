"""Is /dev/shm large enough, and is there room in it? NCCL and data loaders keep their segments there; want of it is a SIGBUS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "host_shm"
NEEDS = ("host",)
_MIB = 1 << 20
_GROW = "mount -o remount,size=16G /dev/shm; in a container: docker run --shm-size=16g or --ipc=host"


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge its size and its room."""
    unread = said.unread(NAME, now, "host.shm", "/dev/shm")  # noqa: S108 -- a name
    row = now.table("host.shm")
    total, free = said.figure(row, "total"), said.figure(row, "free")
    if unread is not None or total is None or free is None:
        yield unread or CheckResult(NAME, HOST, Result.UNKNOWN, "shared memory: its size is not known")
        return
    told = (f"{said.mib(free)} of {said.mib(total)} free",)
    if free < limits.shm_free_mib * _MIB:
        why = f"shared memory (/dev/shm) has only {said.mib(free)} free: what asks for more dies of SIGBUS"
        yield CheckResult(NAME, HOST, Result.FAILED, why, told, Repair.CONFIGURE, f"supervise doctor --fix; ls -lS /dev/shm; {_GROW}")
    elif total < limits.shm_total_mib * _MIB:
        why = f"shared memory (/dev/shm) has only {said.mib(total)}: NCCL and data loaders may need more"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, told, Repair.CONFIGURE, _GROW)
    else:
        yield CheckResult(NAME, HOST, Result.OK, f"shared memory (/dev/shm) has {said.mib(free)} free", told)
