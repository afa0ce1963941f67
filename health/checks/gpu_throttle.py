"""Is a GPU held back by heat or by a power brake? By the share of time since the job's start, where the driver counts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result, delta, elapsed_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_throttle"
NEEDS = ("nvml",)


#: nvmlClocksEventReasons. 0x4 (power cap) is how a busy GPU runs, and no fault.
_REASONS = {0x8: "a slowdown by hardware", 0x20: "heat (driver)", 0x40: "heat (hardware)", 0x80: "a power brake"}
_COUNTERS = {"gpu.sw_thermal_ns": "heat (driver)", "gpu.hw_thermal_ns": "heat (hardware)", "gpu.power_brake_ns": "a power brake"}


def check(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge why the clocks are lower than they could be."""
    for subject in gpus.all_of(now):
        reasons = now.count("gpu.throttle_reasons", subject)
        if reasons is None:
            continue
        who = gpus.called(now, subject)
        look = f"nvidia-smi -q -d PERFORMANCE -i {gpus.address(now, subject)}"
        held: dict[str, float] = {}
        for name, words in _COUNTERS.items():
            grown, seconds = delta(now, before, name, subject), elapsed_s(now, before, name, subject)
            if grown is not None and seconds is not None:
                held[words] = grown / 1e9 / seconds
        at_present = [words for bit, words in _REASONS.items() if reasons & bit]
        evidence = (f"reasons {reasons:#x}", *(f"{words}: {share:.1%} of the time" for words, share in held.items()))
        long = [words for words, share in held.items() if share > limits.throttled_share]
        if long or (at_present and not held):
            power = "a power brake" in (long or at_present)
            why = f"{who}: held back by {', '.join(long or at_present)}: check its {'power' if power else 'cooling'}"
            yield CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.DRAIN, look)
        else:
            yield CheckResult(NAME, subject, Result.OK, f"{who}: not held back", evidence)
