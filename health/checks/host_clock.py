"""Is the clock right? Nodes' logs are merged by it, and tokens of object stores hold for minutes only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "host_clock"
NEEDS = ("clock",)
_SET = "systemctl restart chronyd; chronyc makestep; timedatectl"


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge by chrony's measurement where there is one, else by the kernel's estimate."""
    chrony, kernel = now.table("clock.chrony"), now.table("clock.kernel")
    offset, most = said.figure(chrony, "offset_s"), said.figure(kernel, "max_error_s")
    # with TAI or a leap second nothing changes; an unsynchronized source says so in `leap`
    measured = offset is not None and chrony.get("leap") != "Not synchronised"
    if measured and offset is not None:
        evidence = (f"chrony: {offset:+.6f} s, stratum {chrony.get('stratum')}",)
        if abs(offset) > limits.clock_error_failed_s:
            why = f"the clock is off by {offset:+.0f} s: object stores refuse what it signs"
            yield CheckResult(NAME, HOST, Result.FAILED, why, evidence, Repair.CONFIGURE, _SET)
        elif abs(offset) > limits.clock_error_s:
            yield CheckResult(NAME, HOST, Result.DEGRADED, f"the clock is off by {offset:+.3f} s", evidence, Repair.CONFIGURE, _SET)
        else:
            yield CheckResult(NAME, HOST, Result.OK, f"the clock is off by {offset:+.6f} s", evidence)
        return
    unread = said.unread(NAME, now, "clock.kernel", "the clock")
    if unread is not None:
        yield unread
    elif kernel.get("synchronized") is not True:
        # in many virtual machines and containers the host sets the clock, and this kernel does not know
        why = "nobody has told this kernel that its clock is right: how far it is off cannot be seen"
        yield CheckResult(NAME, HOST, Result.UNKNOWN, why, (f"the kernel's largest error: {most} s",), Repair.CONFIGURE, _SET)
    elif most is not None and most > limits.clock_error_s:
        why = f"the clock may be off by {most:.1f} s: its source has not answered for long"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, (), Repair.CONFIGURE, _SET)
    else:
        yield CheckResult(NAME, HOST, Result.OK, "the clock is synchronized", (f"largest error {most} s",))
