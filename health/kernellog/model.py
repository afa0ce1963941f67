"""The values of kernellog: one message, and one finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from health.model import Repair, Severity

if TYPE_CHECKING:
    from health.model import Json


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of the kernel, from any form of log.

    text: the message without time, host and level. line: the whole line. number: of the line, from 1. t: wall seconds or seconds since
    boot, None if the line has no time. uptime_s: seconds since boot, None if unknown. sure: the line is marked as the kernel's. host: ""
    if the line names none.
    """

    text: str
    line: str = ""
    number: int = 0
    t: float | None = None
    uptime_s: float | None = None
    sure: bool = True
    host: str = ""


@dataclass(frozen=True, slots=True)
class LogFinding:
    """One event. A burst of equal lines is one event, and so are the several lines that the kernel writes about one.

    code: the number of an Xid or SXid, else a word. pci: in lower case, "" if the line names none. subject: another device (`nvme0`).
    line, number: its first line. count: of lines. meaning: a sentence. fields: further values of the lines (mig, pid, process, link, unit,
    host, …). same_gpu: for an Xid, whether the GPU may be used again: yes, after_reset, no.
    """

    kind: str
    code: int | str
    severity: Severity
    repair: Repair
    meaning: str
    line: str
    number: int = 0
    pci: str = ""
    subject: str = ""
    t: float | None = None
    last_t: float | None = None
    count: int = 1
    same_gpu: str = ""
    reason: str = ""
    fields: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON: the keys of every finding first, the others if they have a value."""
        row: dict[str, Json] = {
            "kind": self.kind,
            "code": self.code,
            "pci": self.pci or None,
            "severity": self.severity.value,
            "repair": self.repair.value,
            "meaning": self.meaning,
            "line": self.line,
            "line_number": self.number,
            "count": self.count,
        }
        more: dict[str, Json] = {"subject": self.subject, "same_gpu": self.same_gpu, "reason": self.reason}
        row |= {key: value for key, value in more.items() if value}
        if self.t is not None:
            row["time"] = self.t
        if self.last_t is not None and self.last_t != self.t:
            row["last_time"] = self.last_t
        return row | {key: value for key, value in self.fields if key not in row}
