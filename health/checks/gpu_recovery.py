"""What the driver itself says is needed (NVML field 230): a state, so that it is there also when nobody saw the event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_recovery"
NEEDS = ("nvml",)


#: nvmlDeviceGpuRecoveryAction_t (nvml.h of CUDA 13): result, words, repair, whether it holds a start back.
_ACTIONS = {
    1: (Result.FAILED, "the driver asks for a reset of the GPU", Repair.RESET_GPU, True),
    2: (Result.FAILED, "the driver asks for a reboot of the node", Repair.REBOOT, True),
    3: (Result.DEGRADED, "the driver asks to end all traffic between GPUs: peers of it must be drained", Repair.DRAIN, False),
    4: (Result.DEGRADED, "it works with less than it has: the driver asks for a reset once the job is over", Repair.RESET_GPU, False),
    5: (Result.DEGRADED, "the driver asks to recover the IMEX domain", Repair.RESTART_DRIVER, False),
    6: (Result.FAILED, "the driver asks for a reset of the bus", Repair.REBOOT, True),
    7: (Result.FAILED, "the driver asks for a reboot of the whole system", Repair.REBOOT, True),
}


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
        if action == 0:
            yield CheckResult(NAME, subject, Result.OK, f"{gpus.called(now, subject)}: none needed")
            continue
        unknown = (Result.DEGRADED, f"the driver asks for an action that we do not know ({action})", Repair.DRAIN, False)
        result, words, repair, blocks = _ACTIONS.get(action, unknown)
        command = gpus.reset_command(now, subject) if repair is Repair.RESET_GPU else f"nvidia-smi -q -i {gpus.address(now, subject)}"
        why = f"{gpus.called(now, subject)}: {words}"
        yield CheckResult(NAME, subject, result, why, (f"recovery action {action}",), repair, command, blocks)
