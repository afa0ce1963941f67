"""Does a control group hold the job back? Memory, processors, pids, and kills for want of memory since the job's start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result, delta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "host_cgroup"
NEEDS = ("cgroup",)
_NAMES = ("cgroup.memory", "cgroup.cpu", "cgroup.pids")


def check(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each limit that there is."""
    if all(now.value(name) is None for name in _NAMES):
        yield CheckResult(NAME, HOST, Result.SKIPPED, "control groups: not to be seen here")
        return
    found = [*_memory(now, before, limits), *_cpu(now, before, limits), *_pids(now, limits)]
    if found:
        yield from found
        return
    limit, quota = said.figure(now.table("cgroup.memory"), "limit"), said.figure(now.table("cgroup.cpu"), "quota")
    told = [f"memory limited to {said.mib(limit)}"] if limit is not None else []
    told += [f"{quota:g} processors"] if quota is not None else []
    yield CheckResult(NAME, HOST, Result.OK, "; ".join(told) or "no limit that can be seen from here")


def _memory(now: Readings, before: Readings | None, limits: Thresholds) -> Iterator[CheckResult]:
    kills = delta(now, before, "cgroup.oom_kills", HOST)
    if kills:
        why = f"the kernel killed {kills:.0f} times in this control group since the job started: its memory limit is too small"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, (), Repair.CONFIGURE, "dmesg -T | grep -i oom")
    row = now.table("cgroup.memory")
    limit, used = said.figure(row, "limit"), said.figure(row, "used")
    if limit and used is not None and used > limits.cgroup_memory_share * limit:
        why = f"{used / limit:.0%} of the control group's memory limit is in use, file caches left out"
        evidence = (f"{said.mib(used)} of {said.mib(limit)}",)
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, f"cat {row.get('path')}/memory.stat")


def _cpu(now: Readings, before: Readings | None, limits: Thresholds) -> Iterator[CheckResult]:
    row, was = now.table("cgroup.cpu"), (before.table("cgroup.cpu") if before is not None else {})
    quota = said.figure(row, "quota")
    if quota is None:
        return
    # without a baseline since the group was made
    periods, throttled = ((said.figure(row, key) or 0) - (said.figure(was, key) or 0) for key in ("periods", "throttled"))
    if periods > 0 and throttled / periods > limits.cpu_throttled_share:
        why = f"the control group's quota of {quota:g} processors held it back in {throttled / periods:.0%} of the time"
        evidence = (f"{throttled:.0f} of {periods:.0f} periods", f"since {'the job started' if was else 'the group was made'}")
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, f"cat {row.get('path')}/cpu.stat")


def _pids(now: Readings, limits: Thresholds) -> Iterator[CheckResult]:
    row = now.table("cgroup.pids")
    limit, used = said.figure(row, "limit"), said.figure(row, "used")
    if limit and used is not None and used >= limits.table_used_share * limit:
        full = used >= limits.table_full_share * limit
        why = f"{used / limit:.0%} of the control group's pids are in use: threads count too"
        evidence = (f"{used:.0f} of {limit:.0f}",)
        yield CheckResult(NAME, HOST, Result.FAILED if full else Result.DEGRADED, why, evidence, Repair.CONFIGURE,
                          f"cat {row.get('path')}/pids.max")  # fmt: skip
