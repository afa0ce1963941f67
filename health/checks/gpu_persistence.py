"""Does the driver stay loaded between two processes? If not, each start takes seconds, and its counters and settings are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_persistence"
NEEDS = ("nvml",)


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge persistence mode."""
    for subject in gpus.all_of(now):
        mode = now.count("gpu.persistence", subject)
        if mode is None:
            continue
        who = gpus.called(now, subject)
        if mode:
            yield CheckResult(NAME, subject, Result.OK, f"{who}: persistence mode is on")
        else:
            command = f"nvidia-smi -pm 1 -i {gpus.address(now, subject)}"
            yield CheckResult(NAME, subject, Result.DEGRADED, f"{who}: persistence mode is off", (), Repair.CONFIGURE, command)
