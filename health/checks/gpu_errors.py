"""Does a GPU answer at all? NVML's own errors are verdicts: lost, reset required, mismatch, corrupted InfoROM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_errors"
NEEDS = ("nvml",)


#: By NVML's code: result, words, repair, whether it holds a start back. 999 is what a GPU off the bus answers when looked up.
_SAID = {
    8: (Result.FAILED, "it has too little power: its cables are not attached well", Repair.DRAIN, True),
    9: (Result.FAILED, "its driver is not loaded any more", Repair.RESTART_DRIVER, True),
    11: (Result.FAILED, "its interrupts do not arrive", Repair.REBOOT, True),
    14: (Result.DEGRADED, "its InfoROM is corrupted: the memory of its faults and settings", Repair.REPLACE, False),
    15: (Result.FAILED, "it is lost: it fell off the bus, or does not answer", Repair.REBOOT, True),
    16: (Result.FAILED, "it must be reset before it can be used", Repair.RESET_GPU, True),
    18: (Result.FAILED, "library and kernel module of the driver are of different versions", Repair.RESTART_DRIVER, True),
    999: (Result.FAILED, "the driver cannot say which GPU it is: it fell off the bus, or its firmware is stuck", Repair.REBOOT, True),
}
#: Worst last.
_GRAVITY = (14, 999, 11, 8, 16, 9, 18, 15)


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each GPU's errors, the gravest."""
    for subject in gpus.all_of(now):
        rows = now.rows("gpu.errors", subject)
        evidence = tuple(f"{row.get('call')}: NVML error {row.get('code')}: {row.get('words')}" for row in rows)
        refused = now.table("gpu.identity", subject).get("refused")
        if not rows and refused:
            yield CheckResult(NAME, subject, Result.UNKNOWN, f"{gpus.called(now, subject)} may not be looked at: {refused}")
            continue
        if not rows:
            yield CheckResult(NAME, subject, Result.OK, f"{gpus.called(now, subject)} answers")
            continue
        result, words, repair, blocks = Result.UNKNOWN, "one call failed for a reason that the driver does not tell", Repair.NONE, False
        if codes := gpus.errors(now, subject):
            result, words, repair, blocks = _SAID.get(max(codes, key=_gravity), _SAID[999])
        command = gpus.reset_command(now, subject) if repair is Repair.RESET_GPU else "nvidia-smi -L; dmesg | grep -i -e nvrm -e xid"
        yield CheckResult(NAME, subject, result, f"{gpus.called(now, subject)}: {words}", evidence, repair, command, blocks)


def _gravity(code: int) -> int:
    return _GRAVITY.index(code) if code in _GRAVITY else -1
