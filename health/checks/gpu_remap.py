"""Rows of memory that were replaced by spare ones. Pending is no emergency: it is done at the next reset; a failure is the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_remap"
NEEDS = ("nvml",)


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each GPU's remapped rows."""
    for subject in gpus.all_of(now):
        if not gpus.answers(now, subject):
            continue
        unread = gpus.unread(NAME, now, "gpu.remapped_rows", subject)
        yield unread if unread is not None else _judged(now, limits, subject)


def _judged(now: Readings, limits: Thresholds, subject: str) -> CheckResult:
    rows = now.value("gpu.remapped_rows", subject)
    corrected, uncorrected, pending, failure = (
        int(one) if isinstance(one, int) else 0 for one in (rows if isinstance(rows, list) else [0] * 4)
    )
    who = gpus.called(now, subject)
    evidence = (f"remapped for corrected errors: {corrected}, for uncorrectable: {uncorrected}",)
    look = f"nvidia-smi -q -d ROW_REMAPPER -i {gpus.address(now, subject)}"
    if failure:
        why = f"{who}: a row could not be remapped: no spare row is left for it"
        return CheckResult(NAME, subject, Result.FAILED, why, evidence, Repair.REPLACE, look)
    if uncorrected >= limits.remapped_uncorrectable:
        why = f"{who}: {uncorrected} rows are remapped for uncorrectable errors, of {limits.remapped_uncorrectable} that can be"
        return CheckResult(NAME, subject, Result.FAILED, why, evidence, Repair.REPLACE, look)
    if pending:
        why = f"{who}: a row waits to be remapped; the bad page is out of use until then, so a reset at the next restart is enough"
        return CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.RESET_GPU, gpus.reset_command(now, subject))
    if corrected + uncorrected > limits.remapped_rows_notable:
        why = f"{who}: {corrected + uncorrected} rows are remapped; GPUs with more than {limits.remapped_rows_notable} are often slower"
        return CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.NONE, look)
    return CheckResult(NAME, subject, Result.OK, f"{who}: {corrected + uncorrected} rows remapped", evidence)
