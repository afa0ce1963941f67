"""Pages of memory out of use for good, on GPUs before Ampere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_retired"
NEEDS = ("nvml",)


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge retired pages, where there are such."""
    for subject in gpus.all_of(now):
        counts = [now.count(name, subject) for name in ("gpu.retired_sbe", "gpu.retired_dbe")]
        if counts == [None, None]:
            continue  # Ampere and later remap rows instead
        pages, who = sum(count or 0 for count in counts), gpus.called(now, subject)
        evidence = (f"after corrected errors: {counts[0]}, after uncorrectable: {counts[1]}",)
        look = f"nvidia-smi -q -d PAGE_RETIREMENT -i {gpus.address(now, subject)}"
        if pages >= limits.retired_pages:
            why = f"{who}: {pages} pages are retired, of {limits.retired_pages} that can be"
            yield CheckResult(NAME, subject, Result.FAILED, why, evidence, Repair.REPLACE, look)
        elif now.count("gpu.retired_pending", subject):
            why = f"{who}: a page waits to be retired at the next reset"
            yield CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.RESET_GPU, gpus.reset_command(now, subject))
        elif pages > limits.retired_pages_notable:
            yield CheckResult(NAME, subject, Result.DEGRADED, f"{who}: {pages} pages are retired", evidence, Repair.NONE, look)
        else:
            yield CheckResult(NAME, subject, Result.OK, f"{who}: {pages} pages retired", evidence)
