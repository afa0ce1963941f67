"""Are this host's name and those of the job's other nodes resolved, and quickly? A rendezvous begins with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

NAME = "net_names"
NEEDS = ("names",)


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each name."""
    rows = {one.subject: now.table("name.resolved", one.subject) for one in now.of("name.resolved")}
    alone = len(rows) == 1
    for subject, row in rows.items():
        yield _judged(now, subject, row, limits, alone=alone)


def _judged(now: Readings, subject: str, row: dict[str, Json], limits: Thresholds, *, alone: bool) -> CheckResult:
    name, problem = subject.removeprefix("name:"), now.problem("name.resolved", subject)
    look = f"getent hosts {name}; cat /etc/resolv.conf"
    if problem:
        # its own name matters where others are to find this node by it; alone, torchrun is given localhost
        result = Result.DEGRADED if alone else Result.FAILED
        return CheckResult(NAME, subject, result, f"{name} is not resolved: {problem}", (), Repair.CONFIGURE, look)
    addresses, seconds = row.get("addresses"), said.figure(row, "seconds") or 0.0
    told = tuple(map(str, addresses)) if isinstance(addresses, list) else ()
    if seconds > limits.resolve_s:
        why = f"{name} took {seconds:.1f} s to be resolved: a name server does not answer"
        return CheckResult(NAME, subject, Result.DEGRADED, why, told, Repair.CONFIGURE, look)
    if row.get("own") is True and not alone and told and all(one.startswith("127.") or one == "::1" for one in told):
        why = f"this host's own name, {name}, is resolved to itself only: a rendezvous that hands it on sends others to themselves"
        return CheckResult(NAME, subject, Result.DEGRADED, why, told, Repair.CONFIGURE, "cat /etc/hosts")
    return CheckResult(NAME, subject, Result.OK, f"{name} is resolved in {seconds:.3f} s", told)
