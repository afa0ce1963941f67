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
    """Judge the count, and name what is missing, each GPU once: of one that the driver has an error for gpu_errors speaks."""
    if now.table("nvml.init").get("code") != 0:
        return  # gpu_driver says why
    seen = {subject: str(now.table("gpu.identity", subject).get("pci") or "") for subject in gpus.all_of(now)}
    there, files = gpus.bus_gpus(now), now.value("dev.gpus")
    evidence = (
        f"driver: {len(seen)}",
        f"bus: {'not read' if there is None else len(there)}",
        f"/dev/nvidia*: {len(files) if isinstance(files, list) else 'not read'}",
    )
    all_named = gpus.all_named(now)  # else one that is not may be there all the same
    command = "nvidia-smi -L; lspci -d 10de: ; dmesg | grep -i -e nvrm -e xid"
    missing = [old for old in gpus.all_of(before) if old not in seen] if all_named and before is not None else []
    missing = missing[sum(not pci for pci in seen.values()) :]  # a GPU without a name is one of them
    for old in missing:
        why = f"{gpus.called(before or now, old)}: there when the job started, and not any more"
        yield CheckResult(NAME, old, Result.FAILED, why, evidence, Repair.REBOOT, command, blocks=True)
    if missing:
        return
    lost = {one.subject.removeprefix("pci:"): "and does not answer" for one in now.of("pci.config") if one.problem}
    if all_named and not _container(now, files, seen):
        lost = dict.fromkeys((pci for pci in there or () if pci not in seen.values()), "and not seen by the driver") | lost
    for subject, words in _unsaid(now, seen, lost).items():
        pci = seen.get(subject, subject.removeprefix("pci:"))
        yield CheckResult(NAME, subject, Result.FAILED, f"on the bus, {words}: {pci}", evidence, Repair.REBOOT, command, blocks=True)
    if not lost and all_named:
        yield CheckResult(NAME, HOST, Result.OK if seen else Result.SKIPPED, f"{len(seen)} GPUs", evidence)
    elif not lost:
        yield CheckResult(NAME, HOST, Result.UNKNOWN, "the driver did not come to name all GPUs", evidence)


def _unsaid(now: Readings, seen: dict[str, str], lost: dict[str, str]) -> dict[str, str]:
    """Return by subject what gpu_errors does not say already. lost: words by PCI address."""
    ill = {seen[subject]: subject for subject in seen if now.rows("gpu.errors", subject)}
    named = {pci: subject for subject, pci in seen.items() if pci and pci not in ill}
    told = {named.get(pci, f"pci:{pci}"): words for pci, words in lost.items() if pci not in ill}
    unnamed = sum(not seen[subject] for subject in seen if now.rows("gpu.errors", subject))
    strangers = [subject for subject in told if subject.startswith("pci:")][:unnamed]
    return {subject: words for subject, words in told.items() if subject not in strangers}


def _container(now: Readings, files: object, seen: dict[str, str]) -> bool:
    """Tell whether a container or cgroup gives us some of the node's GPUs: we may open their files only, and see all buses."""
    given = [subject for subject, pci in seen.items() if pci or now.rows("gpu.errors", subject)]
    return isinstance(files, list) and len(files) == len(given)
