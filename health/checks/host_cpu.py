"""Are the processors held back? By their governor, by heat, by a slow clock source, or by being switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result, delta

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "host_cpu"
NEEDS = ("cpu",)
#: schedutil, and intel_pstate's powersave, follow the load too; only the plain driver's powersave holds to the lowest. Both are named.
_SLOW = ("powersave", "conservative", "userspace")
#: Each reading of these is a trip to a device, and timing GPU work takes many (gcm checks the same).
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")


def check(now: Readings, before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge the processors."""
    unread = said.unread(NAME, now, "cpu.count", "processors")
    if unread is not None:
        yield unread
        return
    found: list[CheckResult] = []
    count = now.table("cpu.count")
    governors = now.table("cpu.governors")
    slow = [name for name in governors if name in _SLOW]
    hot = delta(now, before, "cpu.throttles", HOST)
    clock = now.table("cpu.clocksource").get("current")
    present, online = said.figure(count, "present") or 0, said.figure(count, "online") or 0
    if hot:
        why = f"heat held processors back {hot:.0f} times since the job started: check the node's cooling"
        found.append(
            CheckResult(NAME, HOST, Result.DEGRADED, why, (), Repair.DRAIN, "ipmitool sdr type temperature; ipmitool sdr type fan")
        )
    if slow:
        why = f"processors are governed by {', '.join(slow)}, which may keep them slow: data loading and kernel launches wait for them"
        evidence = tuple(f"{name}: {number} processors" for name, number in governors.items())
        found.append(CheckResult(NAME, HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, "cpupower frequency-set -g performance"))
    if clock in _SLOW_CLOCKS:
        why = f"the clock source is {clock}, whose every reading is slow: the kernel did not trust the processor's own"
        command = "dmesg | grep -i clocksource"
        found.append(CheckResult(NAME, HOST, Result.DEGRADED, why, (), Repair.REBOOT, command))
    if online < present:
        why = f"{present - online:.0f} of {present:.0f} processors are switched off"
        found.append(CheckResult(NAME, HOST, Result.DEGRADED, why, (), Repair.CONFIGURE, "lscpu"))
    usable = count.get("usable")
    seen = "governor not to be seen" if not governors else ", ".join(governors)
    yield from found or [CheckResult(NAME, HOST, Result.OK, f"{online:.0f} processors, {usable} for us", (seen,))]
