"""What the driver itself says is needed (NVML field 230): a state, so that it is there also when nobody saw the event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result
from health.nvidia import recovery_actions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_recovery"
NEEDS = ("nvml",)


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each GPU's recovery action."""
    for subject in gpus.all_of(now):
        if not gpus.answers(now, subject):
            continue
        unread = gpus.unread(NAME, now, "gpu.recovery_action", subject)
        if unread is not None:
            yield unread
            continue
        action = now.count("gpu.recovery_action", subject) or 0
        if action == recovery_actions.NONE:
            yield CheckResult(NAME, subject, Result.OK, f"{gpus.called(now, subject)}: none needed")
            continue
        asked = recovery_actions.asked(action)
        command = gpus.reset_command(now, subject) if asked.repair is Repair.RESET_GPU else f"nvidia-smi -q -i {gpus.address(now, subject)}"
        why = f"{gpus.called(now, subject)}: the driver asks for {asked.words}"
        result = Result.FAILED if asked.now else Result.DEGRADED
        yield CheckResult(NAME, subject, result, why, (f"recovery action {action}",), asked.repair, command, blocks=asked.now)
