"""Are all GPUs there? The driver's count against the bus, the device files and the job's start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_count"
NEEDS = ("nvml", "pci")


def check(now: Readings, before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge the count, and name what is missing. A driver that was not heard out says nothing of a GPU that it did not come to."""
    if now.table("nvml.init").get("code") != 0:
        return  # gpu_driver says why
    seen = {subject: str(now.table("gpu.identity", subject).get("pci") or "") for subject in gpus.all_of(now)}
    there, gone = gpus.bus_gpus(now), [one.subject.removeprefix("pci:") for one in now.of("pci.config") if one.problem]
    files = now.value("dev.gpus")
    evidence = (
        f"driver: {len(seen)}",
        f"bus: {'not read' if there is None else len(there)}",
        f"/dev/nvidia*: {len(files) if isinstance(files, list) else 'not read'}",
    )
    heard = gpus.heard_out(now)
    missing = [old for old in gpus.all_of(before) if old not in seen] if heard and before is not None else []
    hidden = [pci for pci in there or () if pci not in seen.values()] if heard else []
    command = "nvidia-smi -L; lspci -d 10de: ; dmesg | grep -i -e nvrm -e xid"
    for old in missing:
        why = f"{gpus.called(before or now, old)}: there when the job started, and not any more"
        yield CheckResult(NAME, old, Result.FAILED, why, evidence, Repair.REBOOT, command, blocks=True)
    if missing:
        return
    if gone:
        why = f"on the bus, and does not answer: {', '.join(gone)}"
    elif hidden and not _container(files, seen):
        why = f"on the bus, and not seen by the driver: {', '.join(hidden)}"
    elif not heard:
        yield CheckResult(NAME, HOST, Result.UNKNOWN, "the driver did not come to name all GPUs", evidence)
        return
    else:
        yield CheckResult(NAME, HOST, Result.OK if seen else Result.SKIPPED, f"{len(seen)} GPUs", evidence)
        return
    yield CheckResult(NAME, HOST, Result.FAILED, why, evidence, Repair.REBOOT, command, blocks=True)


def _container(files: object, seen: dict[str, str]) -> bool:
    """Tell whether this is a container that is given some of the node's GPUs: it has their device files only, and all buses."""
    return isinstance(files, list) and len(files) == len(seen)
