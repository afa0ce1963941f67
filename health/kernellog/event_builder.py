"""One finding in the making: the lines of it that were seen, and what its first one says.

In: an entry and the form that it has. Out: a Story, which the judge lets grow. Nothing fails; the state is the judge's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from health.kernellog.message_form import Form, Match
from health.kernellog.model import Entry, Severity
from health.model import Repair
from health.nvidia import xid_policy
from health.nvidia.xid_history import Event

OOM: Final = {
    "memcg": "a container's memory limit was reached, and a process in it was killed: the job's own limit, not the node's memory",
    "global": "the node ran out of memory, and a process was killed",
    "victim": "a process was killed for want of memory",
    "start": "the kernel looked for a process to kill for want of memory",
    "no_victim": "the node ran out of memory, and there was nothing to kill",
}
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
_UNCORRECTED: Final = 61  # the bit UC of MCi_STATUS (Intel SDM 3B, 15.3.2.2; AMD's APM has it there, too)


@dataclass(slots=True)
class Story:
    """A finding in the making."""

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
    event: Event | None = None
    fields: dict[str, str] = field(default_factory=dict)

    def near(self, entry: Entry, within_s: float) -> bool:
        """Whether an entry comes within so many seconds of the last line."""
        return self.last_t is None or entry.t is None or 0 <= entry.t - self.last_t <= within_s

    def grow(self, entry: Entry) -> None:
        """Take one more line."""
        self.count += 1
        self.last_t = entry.t if entry.t is not None else self.last_t


def begun(entry: Entry, match: Match) -> Story:
    """Return the story that a message begins."""
    row, groups = match.form, match.groups
    story = Story(row, row.kind, row.code, row.severity, row.repair, row.meaning, entry, last_t=entry.t)
    story.pci = groups.get("pci", "").lower()
    story.subject = groups.get("subject") or groups.get("nic") or groups.get("device", "")
    story.fields = {key: groups[key] for key in FIELDS if key in groups and groups[key] != "<unknown>"}
    if entry.host:
        story.fields["host"] = entry.host
    if row.kind == "sxid":
        story.code = int(groups["number"])
        judged = xid_policy.judge_switch(story.code, groups.get("fatal", ""), groups.get("rest", ""))
        story.severity, story.repair, story.meaning, story.reason = judged.severity, judged.repair, judged.meaning, judged.reason
        if "link" in groups:
            story.fields["link"] = groups["link"]
    elif row.kind == "apei" and "level" in groups:
        story.code = groups["level"].lower()
        story.severity, story.repair = _APEI.get(story.code, (row.severity, row.repair))
    elif row.kind == "mce" and "status" in groups:
        uncorrected = int(groups["status"], 16) >> _UNCORRECTED & 1
        story.severity, story.repair = (Severity.CRITICAL, Repair.DRAIN) if uncorrected else (Severity.INFO, Repair.NONE)
        story.reason = "uncorrected" if uncorrected else "corrected"
    elif row.kind == "segfault" and "library" in groups:
        story.code = groups["library"].partition(".so")[0]
    elif row.kind == "oom":
        story.meaning = OOM[row.code]
    return story


def plain_pci(address: str) -> str:
    """Return an address in one form, for comparing: domain without leading zeros, no function."""
    bus = address.lower().partition(".")[0]
    domain, _, rest = bus.partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest}" if rest.count(":") else f"0:{bus}"


def may_be(one: str, other: str) -> bool:
    """Whether two addresses, of which either may be missing, may be one device's."""
    return not one or not other or plain_pci(one) == plain_pci(other)
