"""`supervise doctor --kernel-log FILE`: judges a saved log.

In: a file's name, `-` for stdin. Out: on stdout one JSON object per finding and line, or a table for people; the exit code: 69 where
something is to be repaired before the node is used (critical), else 0. What can fail is reading and writing (OSError). Nothing is kept.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.kernellog import lines
from health.kernellog.finding import ORDER, Severity
from health.kernellog.judge import Judge
from health.model import Repair

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from health.kernellog.finding import Finding

FOUND: Final = 69
_GZIP: Final = b"\x1f\x8b"
_SHOWN: Final = 160
_COMMANDS: Final = {
    Repair.RESET_GPU: "nvidia-smi --gpu-reset -i GPU, once nothing runs on it",
    Repair.RESTART_DRIVER: "restart what uses the GPUs, then reload the driver or reboot",
    Repair.REBOOT: "reboot the node",
    Repair.DRAIN: "take no more work on this node (GPU) until it is inspected",
    Repair.REPLACE: "have the part replaced",
    Repair.CONFIGURE: "change the setting that is named",
    Repair.RESTART_JOB: "start the job again",
}


def read(path: str) -> str:
    """Return a file's text, whatever its bytes are; gzip is unpacked. Raises OSError."""
    data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    if data.startswith(_GZIP):
        data = gzip.decompress(data)
    return data.replace(b"\x00", b"").decode("utf-8", "replace")


def judge(text: str) -> tuple[Finding, ...]:
    """Return the findings of a saved log, in its order."""
    judged = Judge()
    judged.take_all(lines.entries(text))
    return judged.findings()


def show(text: str, *, as_json: bool, out: TextIO) -> int:
    """Print the findings of a saved log. Returns the exit code. Raises OSError where nothing can be printed."""
    found = judge(text)
    if as_json:
        out.writelines(json.dumps(one.to_json(), ensure_ascii=False) + "\n" for one in found)
    else:
        out.write(_as_text(found))
    return FOUND if any(one.severity is Severity.CRITICAL for one in found) else 0


def _as_text(found: Sequence[Finding]) -> str:
    if not found:
        return "nothing in this log needs attention\n"
    written = []
    for one in sorted(found, key=lambda one: -ORDER.index(one.severity)):
        where = " ".join(part for part in (one.pci, one.subject) if part)
        again = f" ({one.count} lines)" if one.count > 1 else ""
        written.append(f"{one.severity.value:8}  {one.kind} {one.code}  {where}{again}\n")
        written.append(f"          {one.meaning}{'; ' + one.reason if one.reason else ''}\n")
        if one.repair in _COMMANDS:
            written.append(f"          repair: {one.repair.value}: {_COMMANDS[one.repair]}\n")
        written.append(f"          line {one.number}: {one.line.strip()[:_SHOWN]}\n")
    return "".join(written)
