"""The processors: how they are governed, which are there, and how often heat held them back.

Reads /sys/devices/system/cpu, /sys/devices/system/clocksource. Yields, of `host`: `cpu.governors` (a table: governor → how many
processors), `cpu.count` (present, online, and usable by us), `cpu.throttles` (core and package throttle counts summed over all, since the
boot), `cpu.clocksource` (current, available). Virtual machines show no governor and no throttle counts: `not_supported`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import HOST, NOT_SUPPORTED, Json, Reading
from health.probes import system_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "cpu"
_CPUS: Final = "/sys/devices/system/cpu"
_CLOCK: Final = "/sys/devices/system/clocksource/clocksource0"


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the readings."""
    root = Path(ask.at(_CPUS))
    try:
        cpus = [root / name for name in system_files.listed(root) if re.fullmatch(r"cpu\d+", name)]
    except OSError as error:
        yield system_files.unread(NAME, HOST, "cpu.count", error, root)
        return
    governors = Counter(word for cpu in cpus if (word := system_files.text(cpu / "cpufreq/scaling_governor")))
    yield _made("cpu.governors", {**governors} or None)
    online = _counted(system_files.text(root / "online"))
    yield _made("cpu.count", {"present": len(cpus), "online": online or len(cpus), "usable": len(os.sched_getaffinity(0))})
    cores = [system_files.whole(cpu / "thermal_throttle/core_throttle_count") for cpu in cpus]
    packages = {
        system_files.text(cpu / "topology/physical_package_id"): system_files.whole(cpu / "thermal_throttle/package_throttle_count")
        for cpu in cpus
    }
    seen = [count for count in (*cores, *packages.values()) if count is not None]
    yield _made("cpu.throttles", sum(seen) if seen else None)
    current = system_files.text(ask.at(f"{_CLOCK}/current_clocksource"))
    available = system_files.text(ask.at(f"{_CLOCK}/available_clocksource")).split()
    yield _made("cpu.clocksource", {"current": current, "available": [*available]} if current else None)


def _made(name: str, value: Json) -> Reading:
    return Reading(NAME, HOST, name, value, NOT_SUPPORTED if value is None else "")


def _counted(text: str) -> int:
    """Return how many processors `0-3,8` are."""
    count = 0
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        count += (int(last) - int(first) if last else 0) + 1
    return count
