"""Are a node's GPUs of one kind, with one VBIOS? Different ones have different limits, and ranks wait for the slowest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_vbios"
NEEDS = ("nvml",)


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge names and VBIOS versions."""
    by_kind: dict[tuple[str, str], list[str]] = {}
    for subject in gpus.all_of(now):
        name, vbios = now.table("gpu.identity", subject).get("name"), now.text("gpu.vbios", subject)
        if name and vbios:
            by_kind.setdefault((str(name), vbios), []).append(gpus.called(now, subject))
    if not by_kind:
        return
    evidence = tuple(f"{name}, VBIOS {vbios}: {', '.join(who)}" for (name, vbios), who in by_kind.items())
    if len(by_kind) == 1:
        yield CheckResult(NAME, HOST, Result.OK, "all GPUs are of one kind and VBIOS", evidence)
        return
    kinds = {name for name, _ in by_kind}
    few = min(by_kind.items(), key=lambda row: len(row[1]))
    if len(kinds) > 1:
        yield CheckResult(
            NAME, HOST, Result.DEGRADED, f"GPUs of {len(kinds)} kinds are in this node", evidence, Repair.NONE, "nvidia-smi -L"
        )
    else:
        why = f"{', '.join(few[1])}: VBIOS {few[0][1]}, other GPUs of this node have another"
        yield CheckResult(
            NAME, HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, "nvidia-smi --query-gpu=index,vbios_version --format=csv"
        )
