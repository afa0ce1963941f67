"""Does a GPU under load run as fast as its siblings? One that is slower slows down all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_clocks"
NEEDS = ("nvml",)


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge the clocks of GPUs under load, each against the median of those of its kind."""
    shares: dict[str, float] = {}
    for subject in gpus.all_of(now):
        clock, most = now.number("gpu.clock_sm_mhz", subject), now.number("gpu.clock_sm_max_mhz", subject)
        if clock and most and (now.number("gpu.busy_percent", subject) or 0) >= limits.load_percent:
            shares[subject] = clock / most
    usual = sorted(shares.values())[len(shares) // 2] if shares else 0.0
    for subject, share in shares.items():
        who = gpus.called(now, subject)
        evidence = (f"{now.number('gpu.clock_sm_mhz', subject):.0f} of {now.number('gpu.clock_sm_max_mhz', subject):.0f} MHz under load",)
        if share < limits.clock_share_under_load * usual:
            why = f"{who}: runs at {share:.0%} of its clock under load, its siblings at {usual:.0%}"
            look = f"nvidia-smi -q -d CLOCK,PERFORMANCE -i {gpus.address(now, subject)}"
            yield CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.RESET_GPU, look)
        else:
            yield CheckResult(NAME, subject, Result.OK, f"{who}: runs at {share:.0%} of its clock", evidence)
