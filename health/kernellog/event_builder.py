"""One finding while its lines are still being read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from health.kernellog.messages import Form, KernelMatch, oom_meaning
from health.kernellog.model import Entry
from health.model import Repair, Severity
from health.nvidia import xid_policy
from health.nvidia.xid_history import XidEvent

FIELDS: Final = (
    "mig",
    "pid",
    "process",
    "cpu",
    "bank",
    "status",
    "errors",
    "seconds",
    "port",
    "library",
    "oom_memcg",
    "task_memcg",
    "uuid",
)
_APEI: Final = {
    "corrected": (Severity.INFO, Repair.NONE),
    "informational": (Severity.INFO, Repair.NONE),
    "info": (Severity.INFO, Repair.NONE),
    "recoverable": (Severity.ERROR, Repair.DRAIN),
    "fatal": (Severity.CRITICAL, Repair.DRAIN),
}
_UNCORRECTED: Final = 61  # the bit UC of MCi_STATUS (Intel SDM 3B, 15.3.2.2; the same in AMD's APM)


@dataclass(slots=True)
class EventBuilder:
    """A finding of which more lines may come."""

    form: Form
    kind: str
    code: int | str
    severity: Severity
    repair: Repair
    meaning: str
    entry: Entry
    pci: str = ""
    subject: str = ""
    last_t: float | None = None
    count: int = 1
    reason: str = ""
    rest: str = ""
    ended: bool = False
    dropped: bool = False
    event: XidEvent | None = None
    fields: dict[str, str] = field(default_factory=dict)

    def is_near(self, entry: Entry, within_s: float) -> bool:
        """Return whether an entry comes at most `within_s` seconds after the last line."""
        return self.last_t is None or entry.t is None or 0 <= entry.t - self.last_t <= within_s

    def add(self, entry: Entry) -> None:
        """Add one more line."""
        self.count += 1
        self.last_t = entry.t if entry.t is not None else self.last_t


def begin(entry: Entry, match: KernelMatch) -> EventBuilder:
    """Return the finding that a message begins."""
    row, groups = match.form, match.groups
    builder = EventBuilder(row, row.kind, row.code, row.severity, row.repair, row.meaning, entry, last_t=entry.t)
    builder.pci = groups.get("pci", "").lower()
    builder.subject = groups.get("subject") or groups.get("nic") or groups.get("device", "")
    builder.fields = {key: groups[key] for key in FIELDS if key in groups and groups[key] != "<unknown>"}
    if entry.host:
        builder.fields["host"] = entry.host
    if row.kind == "sxid":
        builder.code = int(groups["sxid"])
        judged = xid_policy.judge_switch(builder.code, groups.get("fatal", ""), groups.get("rest", ""))
        builder.severity, builder.repair, builder.meaning, builder.reason = judged.severity, judged.repair, judged.meaning, judged.reason
        if "link" in groups:
            builder.fields["link"] = groups["link"]
    elif row.kind == "apei" and "level" in groups:
        builder.code = groups["level"].lower()
        builder.severity, builder.repair = _APEI.get(builder.code, (row.severity, row.repair))
    elif row.kind == "mce" and "status" in groups:
        uncorrected = int(groups["status"], 16) >> _UNCORRECTED & 1
        builder.severity, builder.repair = (Severity.CRITICAL, Repair.DRAIN) if uncorrected else (Severity.INFO, Repair.NONE)
        builder.reason = "uncorrected" if uncorrected else "corrected"
    elif row.kind == "segfault" and "library" in groups:
        builder.code = groups["library"].partition(".so")[0]
    elif row.kind == "oom":
        builder.meaning = oom_meaning(row.code)
    return builder


def plain_pci(address: str) -> str:
    """Return an address in one form, for comparing: domain without leading zeros, no function."""
    bus = address.lower().partition(".")[0]
    domain, _, rest = bus.partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest}" if rest.count(":") else f"0:{bus}"


def may_be_same(pci: str, other: str) -> bool:
    """Return whether two addresses may be one device's; either may be missing."""
    return not pci or not other or plain_pci(pci) == plain_pci(other)
