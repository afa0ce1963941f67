"""Is a GPU's power limited below what it is made for? That is a setting, and all ranks wait for the slowest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_power"
NEEDS = ("nvml",)


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge the power limit that is in force."""
    for subject in gpus.all_of(now):
        limit, usual = now.number("gpu.power_limit_mw", subject), now.number("gpu.power_default_mw", subject)
        if not limit or not usual:
            continue
        who, evidence = gpus.called(now, subject), (f"{limit / 1000:.0f} W of {usual / 1000:.0f} W",)
        if limit < limits.power_cap_share * usual:
            why = f"{who}: its power is limited to {limit / 1000:.0f} W, its default is {usual / 1000:.0f} W"
            command = f"nvidia-smi -pl {usual / 1000:.0f} -i {gpus.address(now, subject)}"
            yield CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.CONFIGURE, command)
        else:
            yield CheckResult(NAME, subject, Result.OK, f"{who}: {limit / 1000:.0f} W", evidence)
