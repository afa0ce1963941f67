"""Did every probe (health/probes/) answer? A probe that hangs shows a fault of its source; some faults leave no other trace.

Some probes ask the user's own programs, servers and directories, which may be slow on a healthy node: these never make the node fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.model import CheckResult, Repair, Result, check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

#: git and the packages, resolvers, other nodes, chronyc, journalctl.
_MAY_BE_SLOW = frozenset({"environment", "names", "reach", "ports", "clock", "kernel_log"})


@check(
    "probes",
    subject="probe",
    needs=(),
    reads="how each probe ended",
    degraded="one hung that asks programs, servers or the job's own files (environment, names, reach, ports, clock, the kernel's log)",
    failed="it hung: in the kernel (reboot) or waiting (drain). Still running: unknown, the node is short of CPU",
)
def probes(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge how each probe ended."""
    for reading in now.of("probe.outcome"):
        yield _judged(reading.subject, now.table("probe.outcome", reading.subject))


def _judged(subject: str, outcome: dict[str, Json]) -> CheckResult:
    name, seconds = subject.removeprefix("probe:"), outcome.get("seconds", 0.0)
    if outcome.get("state") == "answered":
        return CheckResult("probes", subject, Result.OK, f"probe {name} answered in {seconds} s")
    if outcome.get("state") != "hung":
        return CheckResult("probes", subject, Result.UNKNOWN, f"probe {name}: {outcome.get('why') or 'no answer'}")
    after = f", after {outcome['after']}" if outcome.get("after") else ""
    evidence = (f"process {outcome.get('pid')}: state {outcome.get('process') or 'unknown'}, in {outcome.get('wchan') or 'unknown'}",)
    late = f"probe {name} did not answer in {outcome.get('deadline_s', seconds)} s{after}"
    look = (f"cat /proc/{outcome.get('pid')}/stack",)
    if name in _MAY_BE_SLOW:
        return CheckResult("probes", subject, Result.DEGRADED, f"{late}: its source is slow or gone", evidence)
    if outcome.get("process") == "D":
        where = f": stuck in the kernel at {outcome.get('wchan') or 'an unknown place'}"
        return CheckResult("probes", subject, Result.FAILED, late + where, evidence, Repair.REBOOT, look=look)
    if outcome.get("process") == "R":
        return CheckResult("probes", subject, Result.UNKNOWN, f"{late}: it was still running, the node may be short of CPU", evidence)
    return CheckResult(
        "probes", subject, Result.FAILED, f"{late}: it waits for an answer that does not come", evidence, Repair.DRAIN, look=look
    )
