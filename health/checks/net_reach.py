"""Do the job's other nodes answer, and how quickly? One that refuses a connection is there; one that is silent is cut off."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "net_reach"
NEEDS = ("reach",)
#: A node that is this much slower than the others is named, where it is slow enough to tell from noise.
_TIMES, _LEAST_S = 10.0, 0.01


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each peer, by itself and by the others."""
    peers = now.of("peer.answer")
    if not peers:
        yield CheckResult(NAME, HOST, Result.SKIPPED, "no other node is known")
        return
    times = {one.subject: said.figure(now.table("peer.answer", one.subject), "seconds") for one in peers}
    usual = median([one for one in times.values() if one is not None] or [0.0])
    for one in peers:
        name, seconds = one.subject.removeprefix("peer:"), times[one.subject]
        host, _, port = name.rpartition(":")
        look = f"nc -vz -w 3 {host} {port}; ip route get {host}"
        if seconds is None:
            words = "no answer: a firewall, or it is down" if one.problem == "timeout" else one.problem
            why = f"{name} cannot be reached: {words}"
            yield CheckResult(NAME, one.subject, Result.FAILED, why, (), Repair.CONFIGURE, look)
            continue
        evidence = (f"{seconds * 1000:.2f} ms", f"median of all {usual * 1000:.2f} ms")
        if seconds > limits.connect_s or (seconds > _TIMES * usual and seconds > _LEAST_S):
            why = f"{name} takes {seconds * 1000:.0f} ms to answer"
            yield CheckResult(NAME, one.subject, Result.DEGRADED, why, evidence, Repair.NONE, f"mtr -rwc 10 {host}")
        else:
            yield CheckResult(NAME, one.subject, Result.OK, f"{name} answers in {seconds * 1000:.2f} ms", evidence)
