"""Does every path that the job writes answer? A server that is gone, and a handle that is stale, are found before a rank hangs on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "disk_paths"
NEEDS = ("disk",)


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge how each path answered."""
    for reading in now.of("path.state"):
        yield said.unread(NAME, now, "path.state", reading.subject.removeprefix("path:"), reading.subject) or _judged(now, reading.subject)


def _judged(now: Readings, subject: str) -> CheckResult:
    path, row, mount = subject.removeprefix("path:"), now.table("path.state", subject), now.table("path.mount", subject)
    evidence = (f"{mount['kind']} of {mount['source']} on {mount['point']}",) if mount else ()
    again = f"umount -l {mount.get('point', path)}; mount {mount.get('point', path)}"
    if row.get("hung"):
        where = f": stuck in the kernel at {row['wchan']}" if row.get("state") == "D" and row.get("wchan") else ""
        stage = {"stat": "when asked for its room", "space": "when written to"}.get(str(row.get("after")), "when looked at")
        evidence = (*evidence, f"process {row.get('pid')}: state {row.get('state') or 'unknown'}")
        return CheckResult(NAME, subject, Result.FAILED, f"{path} does not answer {stage}{where}", evidence, Repair.DRAIN, again)
    if row.get("errno") == "ESTALE":
        why = f"{path}: its handle is stale: the server no longer knows what is mounted here"
        return CheckResult(NAME, subject, Result.FAILED, why, evidence, Repair.CONFIGURE, again)
    if row.get("answers") is not True:
        look = f"ls -ld {path}"
        return CheckResult(NAME, subject, Result.FAILED, f"{path}: {row.get('error')}", evidence, Repair.CONFIGURE, look)
    return CheckResult(NAME, subject, Result.OK, f"{path} answers", evidence)
