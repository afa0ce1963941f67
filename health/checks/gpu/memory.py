"""Checks of GPU memory: its errors, its spare rows and pages, and who holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import common
from health.checks.gpu import gpus
from health.model import CheckResult, Repair, Result, check, delta, elapsed_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

_HOUR_S = 3600.0


@check(
    "gpu_ecc",
    subject="gpu",
    needs=("nvml",),
    reads="ECC counters",
    degraded="uncorrectable since the driver was loaded; more than 10 000 corrected an hour",
    failed="uncorrectable since the job's start",
)
def gpu_ecc(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Did the GPU have memory errors since the job's start, or since the driver was loaded? Totals of a GPU's life do not count."""
    for subject in gpus.subjects(now):
        if not gpus.answers(now, subject):
            continue
        gpu_label = gpus.label(now, subject)
        mode = now.value("gpu.ecc_mode", subject)
        if isinstance(mode, list) and mode[0] == 0:
            yield CheckResult("gpu_ecc", subject, Result.SKIPPED, f"{gpu_label}: ECC is off")
            continue
        unread = gpus.unread("gpu_ecc", now, "gpu.ecc_uncorrected_volatile", subject)
        yield unread if unread is not None else _ecc(now, before, limits, subject, gpu_label)


def _ecc(now: Readings, before: Readings | None, limits: Thresholds, subject: str, gpu_label: str) -> CheckResult:
    volatile = now.count("gpu.ecc_uncorrected_volatile", subject) or 0
    aggregate = now.count("gpu.ecc_uncorrected_aggregate", subject)
    new = max(
        delta(now, before, "gpu.ecc_uncorrected_volatile", subject) or 0, delta(now, before, "gpu.ecc_uncorrected_aggregate", subject) or 0
    )
    evidence = (f"uncorrectable since the driver was loaded: {volatile}", f"in its life: {aggregate}")
    command = gpus.reset_command(now, subject)
    if new >= limits.ecc_uncorrected_delta:
        why = f"{gpu_label}: {new:.0f} uncorrectable memory error{'s' if new != 1 else ''} since the job's start"
        return CheckResult("gpu_ecc", subject, Result.FAILED, why, evidence, Repair.RESET_GPU, command)
    if volatile >= limits.ecc_uncorrected_delta:
        why = f"{gpu_label}: {volatile} uncorrectable memory error{'s' if volatile != 1 else ''} since the driver was loaded"
        return CheckResult("gpu_ecc", subject, Result.DEGRADED, why, evidence, Repair.RESET_GPU, command)
    corrected, seconds = (
        delta(now, before, "gpu.ecc_corrected_volatile", subject),
        elapsed_s(now, before, "gpu.ecc_corrected_volatile", subject),
    )
    # per hour, and at least one hour: a corrected burst costs nothing
    if corrected and seconds and corrected / max(1.0, seconds / _HOUR_S) > limits.ecc_corrected_per_hour:
        why = f"{gpu_label}: {corrected:.0f} memory errors corrected in {seconds:.0f} s"
        return CheckResult(
            "gpu_ecc", subject, Result.DEGRADED, why, evidence, look=(f"nvidia-smi -q -d ECC -i {gpus.address(now, subject)}",)
        )
    return CheckResult("gpu_ecc", subject, Result.OK, f"{gpu_label}: no uncorrectable memory error", evidence)


@check(
    "gpu_sram",
    subject="gpu",
    needs=("nvml",),
    reads="the GPU's own threshold for SRAM",
    failed="exceeded (replace)",
)
def gpu_sram(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Has the on-chip memory had more errors than the vendor allows? The GPU counts that itself."""
    for subject in gpus.subjects(now):
        sram = now.table("gpu.sram", subject)
        if not sram:
            continue  # GPUs before Ampere do not report it
        gpu_label = gpus.label(now, subject)
        evidence = (f"uncorrectable in SRAM: {sram.get('uncorrected_volatile')} now, {sram.get('uncorrected_aggregate')} in its life",)
        if sram.get("threshold_exceeded"):
            why = f"{gpu_label}: more errors of its SRAM than the vendor allows"
            look = (f"nvidia-smi -q -d ECC -i {gpus.address(now, subject)}",)
            yield CheckResult("gpu_sram", subject, Result.FAILED, why, evidence, Repair.REPLACE, look=look)
        else:
            yield CheckResult("gpu_sram", subject, Result.OK, f"{gpu_label}: below the vendor's threshold", evidence)


@check(
    "gpu_remap",
    subject="gpu",
    needs=("nvml",),
    reads="remapped rows",
    degraded="one is pending (reset at the next restart); more than 10",
    failed="a remap failed, or 512 for uncorrectable errors (replace)",
)
def gpu_remap(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Which rows of memory were replaced by spare ones? A pending one waits for the next reset; a failed one ends the GPU's use."""
    for subject in gpus.subjects(now):
        if not gpus.answers(now, subject):
            continue
        unread = gpus.unread("gpu_remap", now, "gpu.remapped_rows", subject)
        yield unread if unread is not None else _remap(now, limits, subject)


def _remap(now: Readings, limits: Thresholds, subject: str) -> CheckResult:
    rows = now.value("gpu.remapped_rows", subject)
    corrected, uncorrected, pending, failure = (
        int(row) if isinstance(row, int) else 0 for row in (rows if isinstance(rows, list) else [0] * 4)
    )
    label = gpus.label(now, subject)
    evidence = (f"remapped for corrected errors: {corrected}, for uncorrectable: {uncorrected}",)
    look = (f"nvidia-smi -q -d ROW_REMAPPER -i {gpus.address(now, subject)}",)
    if failure:
        why = f"{label}: a row could not be remapped: no spare row is left for it"
        return CheckResult("gpu_remap", subject, Result.FAILED, why, evidence, Repair.REPLACE, look=look)
    if uncorrected >= limits.remapped_uncorrectable:
        why = f"{label}: {uncorrected} rows are remapped for uncorrectable errors, of {limits.remapped_uncorrectable} that can be"
        return CheckResult("gpu_remap", subject, Result.FAILED, why, evidence, Repair.REPLACE, look=look)
    if pending:
        why = f"{label}: a row waits to be remapped; the bad page is out of use until then, so a reset at the next restart is enough"
        return CheckResult("gpu_remap", subject, Result.DEGRADED, why, evidence, Repair.RESET_GPU, gpus.reset_command(now, subject))
    if corrected + uncorrected > limits.remapped_rows_notable:
        why = f"{label}: {corrected + uncorrected} rows are remapped; GPUs with more than {limits.remapped_rows_notable} are often slower"
        return CheckResult("gpu_remap", subject, Result.DEGRADED, why, evidence, Repair.NONE, look=look)
    return CheckResult("gpu_remap", subject, Result.OK, f"{label}: {corrected + uncorrected} rows remapped", evidence)


@check(
    "gpu_retired",
    subject="gpu",
    needs=("nvml",),
    reads="retired pages (before Ampere)",
    degraded="one is pending; more than 10",
    failed="60 (replace)",
)
def gpu_retired(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """How many pages of memory are retired? GPUs before Ampere only."""
    for subject in gpus.subjects(now):
        counts = [now.count(name, subject) for name in ("gpu.retired_sbe", "gpu.retired_dbe")]
        if counts == [None, None]:
            continue  # Ampere and later remap rows instead
        pages, gpu_label = sum(count or 0 for count in counts), gpus.label(now, subject)
        evidence = (f"after corrected errors: {counts[0]}, after uncorrectable: {counts[1]}",)
        look = (f"nvidia-smi -q -d PAGE_RETIREMENT -i {gpus.address(now, subject)}",)
        if pages >= limits.retired_pages:
            why = f"{gpu_label}: {pages} pages are retired, of {limits.retired_pages} that can be"
            yield CheckResult("gpu_retired", subject, Result.FAILED, why, evidence, Repair.REPLACE, look=look)
        elif now.count("gpu.retired_pending", subject):
            why = f"{gpu_label}: a page waits to be retired at the next reset"
            yield CheckResult("gpu_retired", subject, Result.DEGRADED, why, evidence, Repair.RESET_GPU, gpus.reset_command(now, subject))
        elif pages > limits.retired_pages_notable:
            yield CheckResult(
                "gpu_retired", subject, Result.DEGRADED, f"{gpu_label}: {pages} pages are retired", evidence, Repair.NONE, look=look
            )
        else:
            yield CheckResult("gpu_retired", subject, Result.OK, f"{gpu_label}: {pages} pages retired", evidence)


_MIB = 1 << 20


@check(
    "gpu_memory",
    subject="gpu",
    needs=("nvml",),
    reads="processes, memory; not while a job of supervise runs: its ranks hold them",
    degraded="a leftover of the job; 1 GiB held by others; memory that nobody accounts for",
)
def gpu_memory(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Who holds a GPU's memory besides the job? The supervisor ends leftovers of this job; foreign processes are only named."""
    for subject in gpus.subjects(now):
        if now.one("gpu.processes", subject) is None or not gpus.answers(now, subject):
            continue
        unread = gpus.unread("gpu_memory", now, "gpu.processes", subject)
        yield unread if unread is not None else _memory_holders(now, limits, subject)


def _memory_holders(now: Readings, limits: Thresholds, subject: str) -> CheckResult:
    rows, gpu_label = now.rows("gpu.processes", subject), gpus.label(now, subject)
    evidence = tuple(_holder_text(row) for row in rows)
    leftovers = [row for row in rows if row.get("ours") == "cookie"]
    strangers = [row for row in rows if not row.get("ours") or row.get("ours") == "other job"]
    held_mib = sum(_held_mib(row) for row in strangers)
    if leftovers:
        pids = ", ".join(str(row.get("pid")) for row in leftovers)
        why = f"{gpu_label}: held by a leftover of this job, or by a process that inherited its mark: process {pids}"
        return CheckResult(
            "gpu_memory", subject, Result.DEGRADED, why, evidence, Repair.RESTART_JOB, look=(f"ps -fp {pids.replace(', ', ',')}",)
        )
    if held_mib >= limits.stranger_memory_mib:
        pids = ",".join(str(row.get("pid")) for row in strangers)
        why = f"{gpu_label}: {common.size(held_mib * _MIB)} are held by others: {'; '.join(_holder_text(row) for row in strangers)}"
        return CheckResult("gpu_memory", subject, Result.DEGRADED, why, evidence, look=(f"ps -fp {pids}",))
    used = now.table("gpu.memory", subject).get("used")
    used_mib = (used if isinstance(used, int) else 0) / _MIB
    if not rows and used_mib > limits.unaccounted_memory_mib:
        amount = common.size(used_mib * _MIB)
        why = f"{gpu_label}: {amount} are in use by no visible process: it is in another container, or dead but not yet reaped"
        return CheckResult("gpu_memory", subject, Result.DEGRADED, why, evidence, look=("fuser -v /dev/nvidia*",))
    return CheckResult("gpu_memory", subject, Result.OK, f"{gpu_label}: held by nobody else", evidence)


def _held_mib(row: dict[str, Json]) -> float:
    size = row.get("bytes")
    return (size if isinstance(size, int) else 0) / _MIB


def _holder_text(row: dict[str, Json]) -> str:
    command = row.get("command") if row.get("there") else "hidden from here: of another container"
    return f"process {row.get('pid')} ({command}): {common.size(_held_mib(row) * _MIB)}"
