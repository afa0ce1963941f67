"""Is there memory left? Also whether the host swaps, and whether the kernel killed for want of memory since the job's start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result, delta

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "host_memory"
NEEDS = ("host",)
_LOOK = "ps -eo pid,rss,comm --sort -rss | head"
_MIB = 1 << 20


def check(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge memory, the worst of it."""
    unread = said.unread(NAME, now, "host.memory", "memory")
    row = now.table("host.memory")
    total, available = said.figure(row, "total"), said.figure(row, "available")
    if unread is not None or total is None or available is None:
        yield unread or CheckResult(NAME, HOST, Result.UNKNOWN, "memory: this kernel does not tell what is available")
        return
    swapped = (said.figure(row, "swap_total") or 0.0) - (said.figure(row, "swap_free") or 0.0)
    kills = delta(now, before, "host.oom_kills", HOST)
    evidence = (f"{said.mib(available)} of {said.mib(total)} available", f"{said.mib(swapped)} swapped")
    if available < limits.memory_available_mib * _MIB:
        why = f"only {said.mib(available)} of memory are available: processes are about to be killed"
        yield CheckResult(NAME, HOST, Result.FAILED, why, evidence, Repair.DRAIN, _LOOK)
    elif kills:
        why = f"the kernel killed {kills:.0f} times for want of memory since the job started"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, evidence, Repair.NONE, "dmesg -T | grep -i oom")
    elif available < limits.memory_available_share * total:
        yield CheckResult(NAME, HOST, Result.DEGRADED, f"only {said.mib(available)} of memory are available", evidence, Repair.NONE, _LOOK)
    elif swapped > limits.swap_used_mib * _MIB:
        why = f"{said.mib(swapped)} are swapped out: a rank that waits for its own memory holds up all"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, "swapoff -a")
    else:
        yield CheckResult(NAME, HOST, Result.OK, f"{said.mib(available)} of memory are available", evidence)
