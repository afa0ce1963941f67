"""How often does a GPU's PCIe link have to send again? A rate, from the counter's growth since the job's start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result, delta, elapsed_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_replays"
NEEDS = ("nvml",)


def check(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge the rate of replays."""
    for subject in gpus.all_of(now):
        grown, seconds = delta(now, before, "gpu.pcie_replays", subject), elapsed_s(now, before, "gpu.pcie_replays", subject)
        if grown is None or seconds is None:
            continue  # no baseline
        rate, who = grown / max(1.0, seconds / 60), gpus.called(now, subject)
        evidence = (f"{grown:.0f} replays in {seconds:.0f} s",)
        if rate > limits.pcie_replays_per_minute:
            why = f"{who}: {rate:.0f} PCIe replays a minute: the link's signal is bad"
            look = f"lspci -vv -s {gpus.address(now, subject)} | grep -i -e LnkSta -e DevSta; dmesg | grep -i aer"
            yield CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.REPLACE, look)
        else:
            yield CheckResult(NAME, subject, Result.OK, f"{who}: PCIe replays are few", evidence)
