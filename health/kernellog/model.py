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

    `to_json` says what each field is. fields: further values of the lines (mig, pid, process, link, unit, host, …).
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
            "kind": self.kind,  # one of those below, or `xid`, `sxid`
            "code": self.code,  # likewise; of `xid` and `sxid` the number
            # the address in the line, in lower case, without `PCI:` and without MIG instance (an Xid's has no function); null if the line
            # names none
            "pci": self.pci or None,
            # `info`: corrected, an echo, or over. `warning`: degraded, inspect it. `error`: a process was ended, or a device failed a
            # request. `critical`: unusable until it is repaired
            "severity": self.severity.value,
            # `none`, `restart_job`, `reset_gpu`, `restart_driver`, `reboot`, `drain` (no more work until a person has looked), `replace`,
            # `configure`
            "repair": self.repair.value,
            "meaning": self.meaning,  # a sentence
            "line": self.line,  # its first line; for an OOM kill the line that names the killed process
            "line_number": self.number,  # of that line
            "count": self.count,  # how many lines
        }
        more: dict[str, Json] = {
            "subject": self.subject,  # another device: `nvme0`, `eth0`, `nvidia-nvswitch3`, a file server
            "same_gpu": self.same_gpu,  # of an Xid: whether the GPU may be used again, `yes`, `after_reset` or `no`
            "reason": self.reason,  # why it is judged so
        }
        row |= {key: value for key, value in more.items() if value}
        if self.t is not None:
            row["time"] = self.t  # its begin: wall seconds or seconds since boot, as in the log; a log without years begins in 2000
        if self.last_t is not None and self.last_t != self.t:
            row["last_time"] = self.last_t  # its end, where that is another
        return row | {key: value for key, value in self.fields if key not in row}
