"""Has the on-chip memory had more errors than the vendor allows? The GPU counts that itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_sram"
NEEDS = ("nvml",)


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge the vendor's own threshold."""
    for subject in gpus.all_of(now):
        told = now.table("gpu.sram", subject)
        if not told:
            continue  # parts before Ampere do not tell
        who = gpus.called(now, subject)
        evidence = (f"uncorrectable in SRAM: {told.get('uncorrected_volatile')} now, {told.get('uncorrected_aggregate')} in its life",)
        if told.get("threshold_exceeded"):
            why = f"{who}: more errors of its SRAM than the vendor allows"
            command = f"nvidia-smi -q -d ECC -i {gpus.address(now, subject)}"
            yield CheckResult(NAME, subject, Result.FAILED, why, evidence, Repair.REPLACE, command)
        else:
            yield CheckResult(NAME, subject, Result.OK, f"{who}: below the vendor's threshold", evidence)
