"""Is a GPU's PCIe link as wide and as fast as it can be? Links are slowed when idle, so that speed is judged under load only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_pcie"
NEEDS = ("nvml",)


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge width always, speed where the GPU works."""
    for subject in gpus.all_of(now):
        width, width_max, gen, gen_max = (
            now.count(name, subject) for name in ("gpu.pcie_width", "gpu.pcie_width_max", "gpu.pcie_gen", "gpu.pcie_gen_max")
        )
        if not width or not width_max:
            continue  # what has no PCIe link, or is lost
        who = gpus.called(now, subject)
        evidence = (f"width x{width} of x{width_max}, generation {gen} of {gen_max}",)
        look = f"nvidia-smi -q -i {gpus.address(now, subject)} | grep -A12 'GPU Link Info'; lspci -vv -s {gpus.address(now, subject)}"
        busy = now.number("gpu.busy_percent", subject) or 0
        if width < width_max:
            why = f"{who}: its PCIe link has {width} lanes of {width_max}: a slot, riser or cable with bad contact"
            yield CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.REPLACE, look)
        elif gen and gen_max and gen < gen_max and busy >= limits.load_percent:
            why = f"{who}: its PCIe link runs at generation {gen} of {gen_max} under load"
            yield CheckResult(NAME, subject, Result.DEGRADED, why, (*evidence, f"busy {busy:.0f} %"), Repair.RESET_GPU, look)
        else:
            yield CheckResult(NAME, subject, Result.OK, f"{who}: PCIe x{width}", evidence)
