"""Judges the findings of the kernel's log. The log keeps events that a device has long recovered from, so only recent ones are failures.

A critical event of the last day is a failure, and so is one whose time nobody knows: a broken GPU must not pass. Older events, and lesser
ones of the last day, are DEGRADED. Corrected errors, echoes and ended events are left out, and so are those of the baseline. The log
blocks no start: whether a GPU needs a repair now, NVML reports (gpu_recovery).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from health.local_time import stamped
from health.model import KERNEL, PERMISSION, CheckResult, Repair, Result, check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

#: Seconds after which an event is history.
RECENT_S: Final = 86400.0
#: The most events that are reported one by one.
MOST_SHOWN: Final = 50
_LOOK: Final = ("dmesg -T",)
#: The kernel's prefix of a line: seconds since it started, which people cannot read.
_UPTIME: Final = re.compile(r"\[ *\d+\.\d+\] ")
_ALLOW: Final = "sudo sysctl kernel.dmesg_restrict=0"


@check(
    "kernel_log",
    subject="kernel",
    needs=("kernel_log",),
    reads="the kernel's log, here and now",
    degraded="[by the line](../explanation/node-health.md#the-kernel-log)",
    failed="[by the line](../explanation/node-health.md#the-kernel-log)",
)
def kernel_log(now: Readings, before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each finding of the log."""
    reading = now.one("kernel.findings", KERNEL)
    if reading is None:
        return
    if reading.problem:
        why = "it may not be read" if reading.problem == PERMISSION else reading.problem
        evidence = (now.problem("kernel.source", KERNEL),)
        yield CheckResult(
            "kernel_log", KERNEL, Result.UNKNOWN, f"the kernel's log was not observed: {why}", evidence, Repair.CONFIGURE, _ALLOW
        )
        return
    known = {_key(row) for row in before.rows("kernel.findings", KERNEL)} if before is not None else set()
    shown = [
        result for row in now.rows("kernel.findings", KERNEL) if _key(row) not in known and (result := _judged(row, reading.t)) is not None
    ]
    shown.sort(key=lambda result: result.result is not Result.FAILED)
    yield from shown[:MOST_SHOWN]
    if len(shown) > MOST_SHOWN:
        yield CheckResult("kernel_log", KERNEL, Result.DEGRADED, f"{len(shown) - MOST_SHOWN} more findings in the kernel's log", look=_LOOK)
    lost = now.count("kernel.overruns", KERNEL) or 0
    if lost:
        why = f"the kernel's log was overwritten {lost} times before it was read"
        yield CheckResult("kernel_log", KERNEL, Result.UNKNOWN, why, (), Repair.CONFIGURE, "boot with log_buf_len=16M")
    if not shown and not lost:
        yield CheckResult("kernel_log", KERNEL, Result.OK, f"{now.text('kernel.source', KERNEL)}: nothing that needs attention")


def _key(row: dict[str, Json]) -> tuple[Json, ...]:
    """Return the identity of an event. Line number and count are not part of it: a copy of the log is read from its end."""
    at = row.get("last_time")
    return row.get("kind"), row.get("code"), row.get("pci"), row.get("subject"), row.get("line") if at is None else at


def _judged(row: dict[str, Json], read_t: float) -> CheckResult | None:
    """Return the result for one finding, None if it needs none. read_t: when the log was read."""
    severity, age = row.get("severity"), row.get("age_s")
    recent = not isinstance(age, int | float) or age <= RECENT_S
    if severity == "info" or (severity == "warning" and not recent):
        return None
    # if only the job must restart, the node is healthy again and there is nothing to repair
    failed = severity == "critical" and recent and row.get("repair") != Repair.RESTART_JOB
    pci, subject = row.get("pci"), row.get("subject")
    code = f"{row.get('kind')} {row.get('code')}"
    where = " ".join(str(word) for word in (pci, subject) if word)
    parts = [f"{code} {where}".strip(), str(row.get("meaning", ""))]
    if row.get("reason"):
        parts.append(str(row["reason"]))
    if not isinstance(age, int | float):
        parts.append("time unknown")
    elif not recent:
        parts.append(f"{age / RECENT_S:.0f} days ago")
    repair = Repair(str(row.get("repair", "none"))) if failed else Repair.NONE
    t = read_t - age if isinstance(age, int | float) else None
    line = str(row.get("line", ""))
    return CheckResult(
        "kernel_log",
        f"pci:{pci}" if pci else KERNEL,
        Result.FAILED if failed else Result.DEGRADED,
        ": ".join(parts[:2]) + "".join(f"; {detail}" for detail in parts[2:]),
        (line if t is None else stamped(t) + _UPTIME.sub("", line, count=1),),
        repair,
        look=_LOOK,
        t=t,
        event=" ".join(str(word) for word in (row.get("kind"), row.get("code"), subject) if word),
    )
