"""What the driver told while we listened: Xids and their kin, also where the kernel log cannot be read.

Each is delivered once, without words. One that the kernel log told too is left to that (checks/kernel_log.py): it has more to say, and
judges repetition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import KERNEL, CheckResult, Repair, Result
from health.nvidia import xids

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

NAME = "gpu_events"
NEEDS = ("nvml",)
#: The log and the event of one Xid are stamped by two processes, each when it comes to it.
_SAME_S = 5.0
_KINDS = {
    "ecc_double_bit": (Result.FAILED, "an uncorrectable memory error", Repair.RESET_GPU),
    "ecc_single_bit_storm": (Result.DEGRADED, "a storm of corrected memory errors", Repair.NONE),
    "dram_retirement_failure": (Result.FAILED, "memory could not be retired", Repair.REPLACE),
    "poison_fatal": (Result.FAILED, "poisoned data was used", Repair.RESET_GPU),
    "gpu_unavailable": (Result.FAILED, "it is not available any more", Repair.REBOOT),
    "recovery_action_changed": (Result.DEGRADED, "the driver changed the recovery that it asks for", Repair.NONE),
}


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each event that came since the last sweep."""
    for reading in now.of("gpu.events"):
        for event in now.rows("gpu.events", reading.subject):
            if _logged(now, event):
                continue
            result, words, repair = _judged(event)
            why = f"{gpus.called(now, reading.subject)}: {words}"
            evidence = (f"{event.get('kind')} {event.get('data')} at {event.get('t')}, {event.get('pci')}",)
            command = gpus.reset_command(now, reading.subject) if repair is Repair.RESET_GPU else "dmesg | grep -i -e nvrm -e xid"
            about = f"{event.get('kind')} {event.get('data')}" if event.get("kind") == "xid" else str(event.get("kind"))
            yield CheckResult(NAME, reading.subject, result, why, evidence, repair, command, event=about)


def _logged(now: Readings, event: dict[str, Json]) -> bool:
    """Tell whether the kernel log has the same Xid of the same GPU at the same time."""
    reading = now.one("kernel.findings", KERNEL)
    at, pci = event.get("t"), str(event.get("pci"))
    if reading is None or event.get("kind") != "xid" or not isinstance(at, int | float):
        return False
    for row in now.rows("kernel.findings", KERNEL):
        age, theirs = row.get("age_s"), str(row.get("pci") or "nowhere")
        same = (row.get("kind"), row.get("code")) == ("xid", event.get("data")) and pci.startswith(theirs)
        if same and isinstance(age, int | float) and abs(reading.t - age - at) <= _SAME_S:
            return True
    return False


def _judged(event: dict[str, Json]) -> tuple[Result, str, Repair]:
    kind, code = str(event.get("kind")), event.get("data")
    if kind != "xid" or not isinstance(code, int):
        return _KINDS.get(kind, (Result.DEGRADED, f"event {kind}", Repair.NONE))
    xid = xids.lookup(code)
    if xid is None:
        return Result.DEGRADED, f"Xid {code}, which is in no catalogue", Repair.NONE
    words = f"Xid {code}: {xid.meaning}"
    if xid.echo or xid.origin is xids.Origin.APP:
        return Result.OK, words, Repair.NONE
    repair = xids.REPAIRS[xid.action]
    grave = xid.action in (xids.Action.RESET, xids.Action.REBOOT, xids.Action.DRAIN)
    return (Result.FAILED if grave and xid.origin is not xids.Origin.EITHER else Result.DEGRADED), words, repair
