"""Checks of GPU settings that should be alike on one node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks.gpu import gpus
from health.model import HOST, CheckResult, Repair, Result, check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds


@check(
    "gpu_persistence",
    subject="gpu",
    needs=("nvml",),
    reads="persistence mode",
    degraded="off",
)
def gpu_persistence(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Does the driver stay loaded between two processes? If not, each start takes seconds, and its counters and settings are lost."""
    for subject in gpus.subjects(now):
        mode = now.count("gpu.persistence", subject)
        if mode is None:
            continue
        label = gpus.label(now, subject)
        if mode:
            yield CheckResult("gpu_persistence", subject, Result.OK, f"{label}: persistence mode is on")
        else:
            command = f"nvidia-smi -pm 1 -i {gpus.address(now, subject)}"
            yield CheckResult(
                "gpu_persistence", subject, Result.DEGRADED, f"{label}: persistence mode is off", (), Repair.CONFIGURE, command
            )


@check(
    "gpu_mig",
    subject="gpu",
    needs=("nvml",),
    reads="MIG mode",
    degraded="another than its siblings', or pending",
)
def gpu_mig(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Is MIG on, and on all GPUs or on none? A change that waits for a reset is reported."""
    modes = {subject: mode for subject in gpus.subjects(now) if isinstance(mode := now.value("gpu.mig_mode", subject), list)}
    mixed = len({str(mode[0]) for mode in modes.values()}) > 1
    for subject, mode in modes.items():
        label, evidence = gpus.label(now, subject), (f"now {_on_off(mode[0])}, after a reset {_on_off(mode[1])}",)
        if mode[0] != mode[1]:
            why = f"{label}: MIG will be {_on_off(mode[1])} after a reset, and is {_on_off(mode[0])} now"
            yield CheckResult("gpu_mig", subject, Result.DEGRADED, why, evidence, Repair.RESET_GPU, gpus.reset_command(now, subject))
        elif mixed and mode[0]:
            why = f"{label}: MIG is on, but off on other GPUs of this node"
            command = f"nvidia-smi -mig 0 -i {gpus.address(now, subject)}"
            yield CheckResult("gpu_mig", subject, Result.DEGRADED, why, evidence, Repair.CONFIGURE, command)
        else:
            yield CheckResult("gpu_mig", subject, Result.OK, f"{label}: MIG is {_on_off(mode[0])}", evidence)


def _on_off(mode: Json) -> str:
    return "on" if mode else "off"


@check(
    "gpu_vbios",
    subject="host",
    needs=("nvml",),
    reads="names, VBIOS versions",
    degraded="not all the same",
)
def gpu_vbios(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Are a node's GPUs of one kind, with one VBIOS? Different ones have different limits, and ranks wait for the slowest."""
    by_kind: dict[tuple[str, str], list[str]] = {}
    for subject in gpus.subjects(now):
        name, vbios = now.table("gpu.identity", subject).get("name"), now.text("gpu.vbios", subject)
        if name and vbios:
            by_kind.setdefault((str(name), vbios), []).append(gpus.label(now, subject))
    if not by_kind:
        return
    evidence = tuple(f"{name}, VBIOS {vbios}: {', '.join(labels)}" for (name, vbios), labels in by_kind.items())
    if len(by_kind) == 1:
        yield CheckResult("gpu_vbios", HOST, Result.OK, "all GPUs are of one kind and VBIOS", evidence)
        return
    kinds = {name for name, _ in by_kind}
    few = min(by_kind.items(), key=lambda row: len(row[1]))
    if len(kinds) > 1:
        yield CheckResult(
            "gpu_vbios", HOST, Result.DEGRADED, f"GPUs of {len(kinds)} kinds are in this node", evidence, look=("nvidia-smi -L",)
        )
    else:
        why = f"{', '.join(few[1])}: VBIOS {few[0][1]}, other GPUs of this node have another"
        yield CheckResult(
            "gpu_vbios",
            HOST,
            Result.DEGRADED,
            why,
            evidence,
            Repair.CONFIGURE,
            look=("nvidia-smi --query-gpu=index,vbios_version --format=csv",),
        )
