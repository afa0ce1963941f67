"""What NVML's readings before and after an attempt are as evidence, and what the classification makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from health.model import HOST, Reading, Readings
from health.nvidia.xid_history import Memory
from supervisor.classify.engine import classify
from supervisor.classify.gpu.state import CLAIMS
from supervisor.config import signatures
from supervisor.core.model import Cause, Evidence
from supervisor.node import gpu_changes
from supervisor.strategies import consent

A, B = "GPU-a", "GPU-b"
CATALOGUE, _ = signatures.read()
DEATH = Evidence("exit", "signal", "6", rank=1, t=200.0)


def node(t: float = 100.0, *, gone: bool = False, hung: bool = False, init: int = 0, **of_b: Any) -> Readings:  # noqa: ANN401  values of readings
    """Readings of two GPUs, those of the second as given. hung: the driver did not come to the second."""
    usual: dict[str, Any] = {
        "gpu.errors": [],
        "gpu.recovery_action": 0,
        "gpu.ecc_uncorrected_volatile": 0,
        "gpu.ecc_uncorrected_aggregate": 7,
        "gpu.remapped_rows": [0, 1, 0, 0],
        "gpu.sram": {"threshold_exceeded": False},
        "gpu.retired_pending": 0,
        "gpu.nvlinks": [{"link": 0, "active": True, "recovery": 0}, {"link": 1, "active": True, "recovery": 3}],
    }
    rows = [Reading("nvml", HOST, "nvml.init", {"code": init}, t=t)]
    rows.append(Reading("nvml", HOST, "nvml.count", 1 if gone else 2, t=t))
    for index, uuid in enumerate((A, B)[: 1 if gone or hung else 2] if not init else ()):
        values = usual | ({f"gpu.{name}": value for name, value in of_b.items()} if uuid == B else {})
        rows.append(Reading("nvml", f"gpu:{uuid}", "gpu.identity", {"index": index, "pci": f"0000:1{index}:00.0"}, t=t))
        rows += [Reading("nvml", f"gpu:{uuid}", name, value, t=t) for name, value in values.items()]
    return Readings(rows)


@dataclass(frozen=True)
class Row:
    """What is otherwise after the attempt, and what follows. sure: enough to change the job."""

    name: str
    cause: Cause
    after: dict[str, Any]
    sure: bool = True
    gpu: str = B
    before: dict[str, Any] = field(default_factory=dict)


ROWS = (
    Row("lost", Cause.GPU_LOST, {"gone": True}),
    Row("lost", Cause.GPU_LOST, {"errors": [{"code": 15, "call": "nvmlDeviceGetMemoryInfo"}]}),
    Row("lost", Cause.GPU_LOST, {"errors": [{"code": 999, "call": "nvmlDeviceGetUUID"}]}),
    Row("reset_required", Cause.GPU_XID_OTHER, {"errors": [{"code": 16, "call": "nvmlDeviceGetMemoryInfo"}]}),
    Row("driver_gone", Cause.GPU_DRIVER, {"init": 18}, gpu=""),
    Row("ecc_uncorrected", Cause.GPU_ECC, {"ecc_uncorrected_volatile": 2}),
    Row("ecc_uncorrected", Cause.GPU_ECC, {"ecc_uncorrected_aggregate": 8}),
    Row("sram_exceeded", Cause.GPU_ECC, {"sram": {"threshold_exceeded": True}}),
    Row("row_remap_failed", Cause.GPU_ECC, {"remapped_rows": [0, 2, 0, 1]}),
    Row("row_remap_pending", Cause.GPU_ECC, {"remapped_rows": [0, 2, 1, 0]}, sure=False),
    Row("page_retirement_pending", Cause.GPU_ECC, {"retired_pending": 1}, sure=False),
    Row("nvlink_down", Cause.NVLINK, {"nvlinks": [{"link": 0, "active": False}]}),
    Row("nvlink_recovered", Cause.NVLINK, {"nvlinks": [{"link": 1, "active": True, "recovery": 4}]}, sure=False),
    Row("recovery_action", Cause.GPU_XID_OTHER, {"recovery_action": 1}),
)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.name} {n}" for n, row in enumerate(ROWS)])
def test_a_change_is_evidence_that_names_cause_gpu_and_hardware(row: Row) -> None:
    (fact,) = gpu_changes.changed(node(150.0, **row.after), node(**row.before), {B: 1})
    assert (fact.source, fact.name, fact.free_text) == ("nvml", row.name, False)
    assert fact.rank == (1 if row.gpu else None)
    verdict = classify((DEATH, fact))
    assert (verdict.cause, verdict.gpu) == (row.cause, row.gpu)
    assert dict(verdict.facts).get("hardware", "") == ("yes" if row.gpu else "")
    assert consent.is_sure(verdict.cause, verdict.confidence) == row.sure
    assert consent.proves(fact, row.cause)


def test_every_claim_has_a_row() -> None:
    assert {row.name for row in ROWS} == set(CLAIMS)


ILL: tuple[dict[str, Any], ...] = (
    {"errors": [{"code": 15, "call": "nvmlDeviceGetMemoryInfo"}]},
    {"ecc_uncorrected_volatile": 3, "remapped_rows": [0, 9, 1, 1], "recovery_action": 4, "retired_pending": 1},
    {"nvlinks": [{"link": 0, "active": False}]},
    {"errors": [{"code": 999, "call": "nvmlDeviceGetFanSpeed"}]},
)


@pytest.mark.parametrize("ill", ILL, ids=range(len(ILL)))
def test_a_fault_older_than_the_attempt_is_no_evidence_of_its_end(ill: dict[str, Any]) -> None:
    assert list(gpu_changes.changed(node(150.0, **ill), node(**ill), {})) == []


def test_a_gpu_that_is_well_and_one_of_which_nothing_is_known_are_no_evidence() -> None:
    assert list(gpu_changes.changed(node(150.0), node(), {})) == []
    assert list(gpu_changes.changed(node(150.0, hung=True), node(), {})) == []


@pytest.mark.parametrize(("code", "facts"), [(999, ["lost"]), (16, ["reset_required"]), (4, [])])
@pytest.mark.parametrize("count", [2, 3], ids=["all named", "hung behind it"])
def test_a_lost_gpu_differs_from_one_without_permission(code: int, facts: list[str], count: int) -> None:
    unnamed = [
        Reading("nvml", "gpu:#1", "gpu.identity", {"index": 1, "pci": ""}),
        Reading("nvml", "gpu:#1", "gpu.errors", [{"code": code, "call": "nvmlDeviceGetHandleByIndex"}]),
        Reading("nvml", HOST, "nvml.count", count),
    ]
    changes = tuple(gpu_changes.changed(node(150.0, gone=True) + Readings(unnamed), node(), {B: 1}))
    assert [(fact.name, fact.rank) for fact in changes] == [(name, 1) for name in facts]
    assert list(gpu_changes.changed(node(150.0, ecc_uncorrected_volatile=5), None, {})) == []


def test_a_specific_gpu_error_wins_over_a_general_recovery_action() -> None:
    after = node(150.0, ecc_uncorrected_volatile=1, remapped_rows=[0, 2, 1, 0], recovery_action=1)
    facts = tuple(gpu_changes.changed(after, node(), {B: 1}))
    assert {fact.name for fact in facts} == {"ecc_uncorrected", "row_remap_pending", "recovery_action"}
    verdict = classify((DEATH, *facts))
    assert verdict.cause is Cause.GPU_ECC
    assert consent.is_sure(verdict.cause, verdict.confidence)
    assert "uncorrectable memory error" in verdict.summary


def xid_events(*events: tuple[str, int, float]) -> Readings:
    rows = [Reading("nvml", f"gpu:{uuid}", "gpu.identity", {"index": n, "pci": f"0000:1{n}:00.0"}) for n, uuid in enumerate((A, B))]
    by_gpu: dict[str, list[Any]] = {}
    for uuid, code, t in events:
        by_gpu.setdefault(uuid, []).append({"kind": "xid", "data": code, "t": t, "pci": "0000:11:00.0" if uuid == B else "0000:10:00.0"})
    return Readings([*rows, *(Reading("nvml", f"gpu:{uuid}", "gpu.events", [*rows_of_gpu]) for uuid, rows_of_gpu in by_gpu.items())])


@pytest.mark.parametrize(
    ("code", "cause", "hardware"),
    [(48, Cause.GPU_ECC, "yes"), (79, Cause.GPU_LOST, "yes"), (74, Cause.NVLINK, "yes"), (31, Cause.GPU_XID_OTHER, "unknown")],
)
def test_an_xid_of_nvml_is_claimed_as_the_kernels_own_line(code: int, cause: Cause, hardware: str) -> None:
    now = xid_events((B, code, 190.0))
    new, memory = tuple(gpu_changes.new_xids(now)), Memory()
    gpu_changes.remember(new, memory)
    facts = tuple(gpu_changes.xid_facts(new, memory, now, {B: 1}, CATALOGUE))
    verdict = classify((DEATH, *facts))
    assert (verdict.cause, verdict.gpu, verdict.rank) == (cause, B, 1)
    assert {fact.source for fact in facts} == {"nvml"}
    assert dict(verdict.facts)["hardware"] == hardware
    assert dict(verdict.facts)["xid"] == str(code)


@pytest.mark.parametrize(
    ("events", "hardware"),
    [
        (((B, 31, 100.0), (B, 31, 40_000.0)), "suspected"),
        (((B, 31, 100.0), (A, 31, 40_000.0), (B, 31, 40_001.0)), "unknown"),
        (((B, 31, 100.0), (B, 31, 100_000.0)), "unknown"),
        (((B, 31, 100.0), (B, 13, 40_000.0)), "unknown"),
        (((B, 31, 100.0), (B, 31, 100.001), (B, 31, 250.0), (B, 31, 400.0)), "unknown"),
        (((B, 31, 100.0), (B, 31, 100.001), (B, 31, 40_000.0)), "suspected"),
    ],
    ids=["again on one GPU", "on several GPUs", "after more than a day", "another code", "one burst", "again after a burst"],
)
def test_the_memory_of_xids_tells_hardware_from_program(events: tuple[tuple[str, int, float], ...], hardware: str) -> None:
    now, memory = xid_events(*events), Memory()
    new = tuple(gpu_changes.new_xids(now))
    gpu_changes.remember(new, memory)
    last = max(new, key=lambda event: event.t)
    (fact,) = gpu_changes.xid_facts((last,), memory, now, {}, CATALOGUE)
    assert dict(fact.fields)["hardware"] == hardware
    assert fact.claim is not None
    assert consent.is_sure(fact.claim.cause, fact.claim.weight) == (hardware == "suspected")


@pytest.mark.parametrize(("ranks", "hardware"), [({B: 0}, "unknown"), ({A: 0, B: 1}, "suspected")], ids=["one GPU in use", "two"])
def test_the_only_gpu_in_use_is_not_suspected_for_what_no_other_did(ranks: dict[str, int], hardware: str) -> None:
    now, memory = xid_events((B, 31, 100.0), (B, 31, 40_000.0)), Memory()
    new = tuple(gpu_changes.new_xids(now))
    gpu_changes.remember(new, memory)
    assert {dict(fact.fields)["hardware"] for fact in gpu_changes.xid_facts(new, memory, now, ranks, CATALOGUE)} == {hardware}
