"""If a rank crashes, where does its dump go, and is there room? Dumps of ranks are as large as their memory, and may fill a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "host_core"
NEEDS = ("host",)


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge the pattern, the limit, and the room."""
    unread = said.unread(NAME, now, "host.core", "core dumps") or said.unread(NAME, now, "host.limits", "limits")
    if unread is not None:
        yield unread
        return
    row, pair = now.table("host.core"), now.table("host.limits").get("core")
    soft = pair[0] if isinstance(pair, list) and pair else None
    evidence = (f"core_pattern {row.get('pattern')}", f"limit {'unlimited' if soft is None else soft}")
    if row.get("pipe"):
        # the kernel pipes to a program whatever the limit is, unless it is 0 and the program cares (core(5))
        if row.get("program_is_there") is False:
            why = "core dumps are piped to a program that is not here: a crash leaves none"
            yield CheckResult(NAME, HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, "sysctl kernel.core_pattern=core.%p")
        else:
            yield CheckResult(NAME, HOST, Result.OK, "core dumps go to a program", evidence)
        return
    if soft == 0:
        yield CheckResult(NAME, HOST, Result.OK, "a crash leaves no core dump (limit 0)", evidence, command="ulimit -c unlimited")
        return
    free = said.figure(row, "free")
    where = row.get("directory")
    if free is None:
        why = f"core dumps would go to {where}: {row.get('problem') or 'not to be seen'}"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, f"mkdir -p {where}")
    elif free < _size(now, limits, soft):
        why = f"core dumps go to {where}, which has {said.mib(free)} free: one would fill it"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, "ulimit -c 0")
    else:
        yield CheckResult(NAME, HOST, Result.OK, f"core dumps go to {where}, which has {said.mib(free)} free", evidence)


def _size(now: Readings, limits: Thresholds, soft: object) -> float:
    """Return what a dump may take at most: what is in use of the memory now, or the limit."""
    row = now.table("host.memory")
    used = (said.figure(row, "total") or 0.0) - (said.figure(row, "available") or 0.0)
    most = float(soft) if isinstance(soft, int) else used
    return max(min(used, most), limits.disk_free_mib * (1 << 20))
