"""The values of kernellog: one message, and one finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from health.model import Repair, Severity

if TYPE_CHECKING:
    from health.model import Json


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of the kernel's, as any of the logs gave it.

    text: the message without time, host and level. line: as it stood there. number: of its line, from 1. t: seconds, of the wall or since
    boot, None where the line has no time. uptime_s: seconds since boot, None where not told. sure: that it is the kernel's is marked.
    host: where the line names it.
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
    """One event. A burst of the same is one event, and so are the lines that the kernel writes of one.

    code: a number of xids or sxids, else a word. pci: as the line gives it, in lower case, "" where it names none; subject: another device
    (`nvme0`, `eth0`). line, number: its first line. count: of lines. meaning: a sentence. fields: what else the lines say (mig, pid,
    process, link, unit, host, …). same_gpu: of an Xid, whether the GPU may be used again: yes, after_reset, no.
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
        """Return it as JSON: what is said of every finding first; the others where they say something."""
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
