"""Finds which GPUs changed their state during an attempt, as evidence of source `nvml`.

Only changes are judged, no totals: a GPU that was ill before is reported when the attempt begins (core/health/findings.py). The claims
are those of classify/gpu/state.py; Xids get the claims of the kernel's rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from health.checks.gpu import gpus
from health.model import Readings, delta
from health.nvidia import recovery_actions, xid_policy, xids
from health.nvidia.xid_history import Memory, XidEvent
from supervisor.classify.gpu.state import CLAIMS, SOURCE
from supervisor.classify.gpu.state import REPEATED as REPEATED_WEIGHT
from supervisor.classify.logs.match import claims
from supervisor.core.model import Evidence
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from health.model import Json
    from supervisor.classify.logs.catalogue import Catalogue

#: Codes of a lost GPU: 8 and 11 name the reason why it cannot be found.
_LOST: Final = frozenset({8, 11, 15, 999})
_RESET: Final = 16
_GONE: Final = frozenset({9, 18})


class DriverXid(Struct, frozen=True):
    """An Xid that the driver reported during an attempt. t: wall seconds."""

    subject: str
    pci: str
    code: int
    t: float


def new_xids(now: Readings) -> Iterator[DriverXid]:
    """Yield the Xids of a sample. The driver delivers each once."""
    for reading in now.of("gpu.events"):
        for row in now.rows("gpu.events", reading.subject):
            code, t = row.get("data"), row.get("t")
            if row.get("kind") == "xid" and isinstance(code, int) and isinstance(t, int | float):
                yield DriverXid(reading.subject, str(row.get("pci") or ""), code, float(t))


def changed(now: Readings, before: Readings | None, ranks: Mapping[str, int]) -> Iterator[Evidence]:
    """Yield what changed since the attempt began. ranks: by UUID, of those GPUs whose rank is known.

    A GPU that is not listed is lost only where the driver named as many as it counts: one that hung did not come to it.
    """
    if before is None:
        return
    code = now.table("nvml.init").get("code")
    if code in _GONE and before.table("nvml.init").get("code") == 0:
        words = "not loaded any more" if code != max(_GONE) else "of another version than its library"
        yield _fact("driver_gone", f"the NVIDIA driver is {words}", _t(before, "nvml.init"), {})
    listed = {reading.subject for reading in now.of("gpu.identity")}
    all_named = code == 0 and gpus.all_named(now)
    for reading in before.of("gpu.identity"):
        subject, unnamed = reading.subject, f"gpu:#{before.table('gpu.identity', reading.subject).get('index')}"
        codes = (gpus.errors(now, subject) | gpus.errors(now, unnamed)) - gpus.errors(before, subject)
        there = subject in listed or unnamed in listed or not all_named
        for name, noun, fields in _of_gpu(now, before, subject, codes if there else _LOST):
            whose = {"gpu_uuid": _uuid(subject), "hardware": "yes"}
            fact = _fact(name, f"{_called(before, subject)}: {noun}", reading.t, whose | fields)
            yield replace(fact, rank=ranks.get(_uuid(subject)))


def _of_gpu(now: Readings, before: Readings, subject: str, codes: AbstractSet[int]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield name, words and figures of each change of one GPU. codes: NVML's errors that it did not have before."""
    if codes & _LOST:
        yield "lost", "it fell off the bus, or does not answer any more", {"nvml_error": str(min(codes & _LOST))}
        return
    if _RESET in codes:
        yield "reset_required", "it must be reset before it can be used", {"nvml_error": str(_RESET)}
    new = max(delta(now, before, f"gpu.ecc_uncorrected_{kind}", subject) or 0 for kind in ("volatile", "aggregate"))
    if new > 0:
        words = f"{new:.0f} uncorrectable memory error{'s' if new != 1 else ''} since the attempt began"
        yield "ecc_uncorrected", words, {"ecc_errors": f"{new:.0f}"}
    if now.table("gpu.sram", subject).get("threshold_exceeded") and not before.table("gpu.sram", subject).get("threshold_exceeded"):
        yield "sram_exceeded", "more SRAM errors than its threshold allows", {}
    (_, was_pending, had_failed), (rows, pending, failed) = _remapped(before, subject), _remapped(now, subject)
    if failed and not had_failed:
        yield "row_remap_failed", "a row of its memory could not be remapped", {}
    elif pending and not was_pending:
        yield "row_remap_pending", "a row of its memory waits to be remapped: it needs a reset", {"remapped_rows": str(rows)}
    if now.value("gpu.retired_pending", subject) and not before.value("gpu.retired_pending", subject):
        yield "page_retirement_pending", "a page of its memory waits to be retired: it needs a reset", {}
    yield from _of_links(now, before, subject)
    action = now.count("gpu.recovery_action", subject) or 0
    if action and action != (before.count("gpu.recovery_action", subject) or 0):
        yield "recovery_action", f"the driver asks for {recovery_actions.asked(action).words}", {"recovery_action": str(action)}


def _of_links(now: Readings, before: Readings, subject: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    old = {row.get("link"): row for row in before.rows("gpu.nvlinks", subject)}
    down: list[str] = []
    recovered: list[str] = []
    for row in now.rows("gpu.nvlinks", subject):
        old_row = old.get(row.get("link"), {})
        if old_row.get("active") and row.get("active") is False:
            down.append(str(row.get("link")))
        elif any(_greater(row.get(name), old_row.get(name)) for name in ("recovery", "recovery_5", "recovery_failed")):
            recovered.append(str(row.get("link")))
    if down:
        yield "nvlink_down", f"NVLink {', '.join(down)} went down", {"links": ",".join(down)}
    if recovered:
        yield "nvlink_recovered", f"NVLink {', '.join(recovered)} went down and came back", {"links": ",".join(recovered)}


def xid_facts(
    reported: Iterable[DriverXid], memory: Memory, names: Readings, ranks: Mapping[str, int], catalogue: Catalogue
) -> Iterator[Evidence]:
    """Yield the Xids of this attempt, claimed as lines of the kernel's log would be. memory: of the last day, these included.

    If only one GPU is in use, it is not suspected for repeated failures: a fault of the program would look the same.
    """
    in_use = set(ranks) or {_uuid(reading.subject) for reading in names.of("gpu.identity")}
    for driver_xid in reported:
        entry = xids.lookup(driver_xid.code)
        name = f": {entry.name}" if entry is not None else ""
        text = f"{_called(names, driver_xid.subject)}: Xid {driver_xid.code}{name}"
        # the kernel's own form, because its rows know every code
        record = Evidence(
            "kernel",
            "record",
            f"NVRM: Xid (PCI:{driver_xid.pci.rpartition('.')[0] or driver_xid.pci}): {driver_xid.code}, by NVML",
            t=driver_xid.t,
        )
        repeated = _repeated(driver_xid, memory) if in_use - {_uuid(driver_xid.subject)} else ""
        for fact in claims(record, catalogue):
            hardware = "suspected" if repeated else entry.hardware if entry is not None else "unknown"
            fields = {"hardware": hardware, **({"xid_repeated": repeated} if repeated else {})}
            claim = fact.claim
            if claim is not None and repeated:
                claim = replace(claim, weight=max(claim.weight, REPEATED_WEIGHT))
            yield replace(
                fact,
                source=SOURCE,
                text=f"{text}; {repeated}" if repeated else text,
                rank=ranks.get(_uuid(driver_xid.subject)),
                fields=(("gpu_uuid", _uuid(driver_xid.subject)), *fact.fields, *fields.items()),
                claim=claim,
            )


def remember(reported: Iterable[DriverXid], memory: Memory) -> None:
    """Put Xids into the memory of the node, each burst as one."""
    for driver_xid in reported:
        memory.add_once(XidEvent(driver_xid.code, _uuid(driver_xid.subject), driver_xid.t))


def _repeated(xid: DriverXid, memory: Memory) -> str:
    entry = xids.lookup(xid.code)
    past = memory.past(XidEvent(xid.code, _uuid(xid.subject), xid.t))
    if entry is None or not xid_policy.is_repeated(entry, past):
        return ""
    return f"{past.same} times within 24 h on this GPU and on no other: its hardware is suspected"


def _fact(name: str, text: str, t: float, fields: Mapping[str, str]) -> Evidence:
    # nobody saw when it happened: after this reading, and before what the ranks died of
    return Evidence(SOURCE, name, text, t=t, fields=tuple(fields.items()), claim=CLAIMS[name])


def _remapped(now: Readings, subject: str) -> tuple[int, bool, bool]:
    """Return how many rows are remapped, whether one waits, and whether one failed."""
    match now.value("gpu.remapped_rows", subject):
        case [int(corrected), int(uncorrected), int(pending), int(failed)]:
            return corrected + uncorrected, bool(pending), bool(failed)
    return 0, False, False


def _greater(now: Json, before: Json) -> bool:
    return isinstance(now, int | float) and isinstance(before, int | float) and now > before


def _uuid(subject: str) -> str:
    name = subject.removeprefix("gpu:")
    return "" if name.startswith("#") else name


def _called(now: Readings, subject: str) -> str:
    identity = now.table("gpu.identity", subject)
    return f"GPU {identity.get('index', '?')} ({_uuid(subject) or 'no name'}, {identity.get('pci', '')})"


def _t(now: Readings, name: str) -> float:
    reading = now.one(name)
    return reading.t if reading is not None else 0.0
