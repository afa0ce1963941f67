"""Is a GPU, or its memory, near the heat at which it slows itself down? The vendor's own limits decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_temperature"
NEEDS = ("nvml",)


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each GPU's temperatures against the vendor's limits."""
    for subject in gpus.all_of(now):
        core, memory = now.number("gpu.temperature_c", subject), now.number("gpu.memory_temperature_c", subject)
        if core is None:
            continue
        slow, memory_max = now.number("gpu.slowdown_c", subject), now.number("gpu.memory_max_c", subject) or limits.hbm_max_c
        who, look = gpus.called(now, subject), f"nvidia-smi -q -d TEMPERATURE -i {gpus.address(now, subject)}"
        margin = now.number("gpu.margin_c", subject) if slow is None else slow - core
        at = core + (margin or 0.0)
        told = "" if memory is None else f", memory {memory:.0f} of {memory_max:.0f} °C"
        evidence = (f"{core:.0f} °C{'' if margin is None else f' of {at:.0f} °C'}{told}",)
        if margin is not None and margin <= limits.gpu_slowdown_margin_c:
            why = f"{who}: {core:.0f} °C, and it slows itself down at {at:.0f} °C: check its cooling"
            yield CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.DRAIN, look)
        elif memory is not None and memory >= memory_max:
            why = f"{who}: its memory is at {memory:.0f} °C, its limit is {memory_max:.0f} °C: check its cooling"
            yield CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.DRAIN, look)
        elif margin is None:
            why = f"{who}: {core:.0f} °C; at how much it slows itself down this GPU or its driver does not tell"
            yield CheckResult(NAME, subject, Result.SKIPPED if memory is None else Result.OK, why, evidence)
        else:
            yield CheckResult(NAME, subject, Result.OK, f"{who}: {core:.0f} °C", evidence)
