"""Is a GPU cut into instances, and all or none of them? A change that waits for a reset is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

NAME = "gpu_mig"
NEEDS = ("nvml",)


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge MIG mode: pending, or not that of the siblings."""
    modes = {subject: mode for subject in gpus.all_of(now) if isinstance(mode := now.value("gpu.mig_mode", subject), list)}
    mixed = len({str(mode[0]) for mode in modes.values()}) > 1
    for subject, mode in modes.items():
        who, evidence = gpus.called(now, subject), (f"now {_word(mode[0])}, after a reset {_word(mode[1])}",)
        if mode[0] != mode[1]:
            why = f"{who}: MIG will be {_word(mode[1])} after a reset, and is {_word(mode[0])} now"
            yield CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.RESET_GPU, gpus.reset_command(now, subject))
        elif mixed and mode[0]:
            why = f"{who}: MIG is on, on other GPUs of this node it is off"
            command = f"nvidia-smi -mig 0 -i {gpus.address(now, subject)}"
            yield CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.CONFIGURE, command)
        else:
            yield CheckResult(NAME, subject, Result.OK, f"{who}: MIG is {_word(mode[0])}", evidence)


def _word(mode: Json) -> str:
    return "on" if mode else "off"
