"""Memory errors since the job's start, or since the driver was loaded.

Totals of a GPU's life never go back, so that only what moved is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result, delta, elapsed_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_ecc"
NEEDS = ("nvml",)


_HOUR_S = 3600.0


def check(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge uncorrectable errors, then corrected ones by their rate."""
    for subject in gpus.all_of(now):
        if not gpus.answers(now, subject):
            continue
        who = gpus.called(now, subject)
        mode = now.value("gpu.ecc_mode", subject)
        if isinstance(mode, list) and mode[0] == 0:
            yield CheckResult(NAME, subject, Result.SKIPPED, f"{who}: ECC is off")
            continue
        unread = gpus.unread(NAME, now, "gpu.ecc_uncorrected_volatile", subject)
        yield unread if unread is not None else _judged(now, before, limits, subject, who)


def _judged(now: Readings, before: Readings | None, limits: Thresholds, subject: str, who: str) -> CheckResult:
    volatile = now.count("gpu.ecc_uncorrected_volatile", subject) or 0
    aggregate = now.count("gpu.ecc_uncorrected_aggregate", subject)
    new = max(
        delta(now, before, "gpu.ecc_uncorrected_volatile", subject) or 0, delta(now, before, "gpu.ecc_uncorrected_aggregate", subject) or 0
    )
    evidence = (f"uncorrectable since the driver was loaded: {volatile}", f"in its life: {aggregate}")
    command = gpus.reset_command(now, subject)
    if new >= limits.ecc_uncorrected_delta:
        why = f"{who}: {new:.0f} uncorrectable memory error{'s' if new != 1 else ''} since the job's start"
        return CheckResult(NAME, subject, Result.FAILED, why, evidence, Repair.RESET_GPU, command)
    if volatile >= limits.ecc_uncorrected_delta:
        why = f"{who}: {volatile} uncorrectable memory error{'s' if volatile != 1 else ''} since the driver was loaded"
        return CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.RESET_GPU, command)
    corrected, seconds = (
        delta(now, before, "gpu.ecc_corrected_volatile", subject),
        elapsed_s(now, before, "gpu.ecc_corrected_volatile", subject),
    )
    # an hour at least: a burst that is corrected costs nothing
    if corrected and seconds and corrected / max(1.0, seconds / _HOUR_S) > limits.ecc_corrected_per_hour:
        why = f"{who}: {corrected:.0f} memory errors corrected in {seconds:.0f} s"
        return CheckResult(
            NAME, subject, Result.DEGRADED, why, evidence, Repair.NONE, f"nvidia-smi -q -d ECC -i {gpus.address(now, subject)}"
        )
    return CheckResult(NAME, subject, Result.OK, f"{who}: no uncorrectable memory error", evidence)
