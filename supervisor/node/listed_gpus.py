"""The GPUs of this node as a person lists them: NVML's facts and the faults of each, and those that the ledger keeps out of use."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Final

from health.checks.gpu.gpus import all_named, label
from health.judge import judge
from health.model import Ask, Result
from health.probing.runner import OUTCOME, Runner
from supervisor.core.values import Struct, replace
from supervisor.node import visible_gpus
from supervisor.node.gpu_quarantine import QUARANTINE_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import CheckResult, Json, Readings
    from supervisor.node.gpu_quarantine import QuarantinedGpu

#: A person waits.
_DEADLINE_S: Final = 8.0
#: NVML's errors where nothing of NVIDIA's is installed or loaded.
_NO_DRIVER: Final = (9, 12)


class GpuFinding(Struct, frozen=True):
    """A fault of a GPU by a check. result: `failed` or `degraded`."""

    check: str
    result: str
    reason: str


class ListedGpu(Struct, frozen=True):
    """One GPU, and the row of `nodes gpus --json`. None and "": not known, or it is in use.

    index: NVML's number. cuda: that of a job started in this shell. since, until: Unix seconds; from `reason` on: why it is out of use, and
    the job and the run that found it.
    """

    index: int | None
    cuda: int | None
    uuid: str
    pci: str
    name: str = ""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    busy_percent: int | None = None
    temperature_c: int | None = None
    findings: tuple[GpuFinding, ...] = ()
    in_use: bool = True
    reason: str = ""
    evidence: str = ""
    since: float | None = None
    until: float | None = None
    job: str = ""
    run: str = ""


class GpuList(Struct, frozen=True):
    """The GPUs that NVML names, in its order, then those that only the ledger does. problem: why NVML did not name all, "" if it did."""

    gpus: tuple[ListedGpu, ...]
    driver: str
    problem: str


def listed_gpus(held: Iterable[QuarantinedGpu]) -> GpuList:
    """Ask NVML, for at most 8 s. held: what the ledger keeps out of use."""
    with closing(Runner()) as runner:
        now = runner.sweep(("nvml",), Ask(deadline_s=_DEADLINE_S))
    return GpuList(tuple(_listed(held, now)), now.text("nvml.driver"), _problem(now))


def _problem(now: Readings) -> str:
    """Return why NVML did not name all GPUs, "" where it did. No driver, and no library of one, is not a GPU."""
    outcome, init = now.table(OUTCOME, "probe:nvml"), now.table("nvml.init")
    if now.problem("nvml.init"):
        return f"which GPUs are here is not known: {now.problem('nvml.init')}"
    if code := init.get("code"):
        return "" if code in _NO_DRIVER else f"which GPUs are here is not known: NVML error {code}: {init.get('words')}"
    if all_named(now):
        return ""
    state = "did not answer in time" if outcome.get("state") == "hung" else outcome.get("why") or "gave no answer"
    return f"which GPUs are here is not known: NVML {state}; `supervise doctor` shows more"


def _listed(held: Iterable[QuarantinedGpu], now: Readings) -> Iterable[ListedGpu]:
    entries = {entry.name: entry for entry in held}
    cuda = {gpu.uuid: number for number, gpu in enumerate(visible_gpus.from_nvml(now, os.environ))}
    wrong = [result for result in judge(now) if result.result in (Result.FAILED, Result.DEGRADED)]
    for reading in now.of("gpu.identity"):
        subject, row = reading.subject, now.table("gpu.identity", reading.subject)
        uuid, pci, memory = subject.removeprefix("gpu:"), str(row.get("pci") or ""), now.table("gpu.memory", subject)
        uuid = "" if uuid.startswith("#") else uuid
        gpu = ListedGpu(
            index=_whole(row.get("index")),
            cuda=cuda.get(uuid),
            uuid=uuid,
            pci=pci,
            name=str(row.get("name") or ""),
            memory_bytes=_whole(memory.get("total")),
            memory_used_bytes=_whole(memory.get("used")),
            busy_percent=_whole(now.value("gpu.busy_percent", subject)),
            temperature_c=_whole(now.value("gpu.temperature_c", subject)),
            findings=_findings(wrong, subject, label(now, subject)),
        )
        yield _with_entry(gpu, entries.pop(uuid if uuid in entries else pci, None))
    for entry in entries.values():
        yield _with_entry(ListedGpu(None, None, entry.uuid, entry.pci), entry)


def _findings(wrong: Iterable[CheckResult], subject: str, name: str) -> tuple[GpuFinding, ...]:
    """Return the faults of one GPU, the worst first. Its name, with which each reason begins, is left out."""
    own = [result for result in wrong if result.subject == subject]
    return tuple(GpuFinding(result.check, result.result.value, result.reason.removeprefix(f"{name}: ")) for result in own)


def _whole(value: Json) -> int | None:
    return value if isinstance(value, int) else None


def _with_entry(gpu: ListedGpu, entry: QuarantinedGpu | None) -> ListedGpu:
    if entry is None:
        return gpu
    since, until = entry.t, entry.t + QUARANTINE_S
    return replace(gpu, in_use=False, reason=entry.reason, evidence=entry.evidence, since=since, until=until, job=entry.job, run=entry.run)
