"""Is the fabric of NVSwitches ready? Until the fabric manager has set it up, CUDA does not start (error 802)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_fabric"
NEEDS = ("nvml",)


_COMPLETED, _NOT_SUPPORTED = 3, 0
_STATES = {1: "not started", 2: "in progress"}
_SUMMARIES = {2: "unhealthy", 3: "of limited capacity"}
#: Fields of the health mask: shift, width, the value that is bad, words.
_MASK = (
    (0, 0x3, 1, "less bandwidth"),
    (2, 0x3, 1, "a route is being recovered"),
    (4, 0x3, 1, "a route is unhealthy"),
    (6, 0x3, 1, "access timed out"),
)
_CONFIGURATION = (8, 0xF)


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each GPU's place in the fabric, and the fabric manager where there are switches."""
    ready = 0
    for subject in gpus.all_of(now):
        told = now.table("gpu.fabric", subject)
        state, summary, mask = (_number(told.get(name)) for name in ("state", "summary", "mask"))
        if state == _NOT_SUPPORTED:
            continue  # no NVSwitch that this driver tells of
        who = gpus.called(now, subject)
        evidence = (f"state {state}, status {told.get('status')}, health {summary}, mask {mask:#x}",)
        look = f"nvidia-smi -q -i {gpus.address(now, subject)} | grep -A5 Fabric; systemctl status nvidia-fabricmanager"
        if state != _COMPLETED or _number(told.get("status")):
            why = f"{who}: registration with the fabric is {_STATES.get(state, 'not done')}: CUDA does not start until it is"
            yield CheckResult(NAME, subject, Result.FAILED, why, evidence, Repair.RESTART_DRIVER, look)
            continue
        ready += 1
        wrong = [words for shift, width, bad, words in _MASK if (mask >> shift) & width == bad]
        if (mask >> _CONFIGURATION[0]) & _CONFIGURATION[1] > 1:
            wrong.append("it is configured wrongly")
        if summary in _SUMMARIES or wrong:
            why = f"{who}: its fabric is {_SUMMARIES.get(summary, 'impaired')}{': ' if wrong else ''}{', '.join(wrong)}"
            yield CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.DRAIN, look)
        else:
            yield CheckResult(NAME, subject, Result.OK, f"{who}: part of the fabric", evidence)
    manager = now.table("fabric.manager")
    if not manager.get("switches") or ready:
        return  # GPUs that are registered prove a manager, also one that this container does not see
    if not manager.get("running"):
        why = f"{manager.get('switches')} NVSwitches are here, and no fabric manager runs"
        yield CheckResult(NAME, HOST, Result.FAILED, why, (), Repair.RESTART_DRIVER, "systemctl start nvidia-fabricmanager")


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
