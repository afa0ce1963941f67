"""Do the Ethernet ports have a carrier, keep it, and pass packets whole? Virtual interfaces and those that are switched off count not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

NAME = "net_ethernet"
NEEDS = ("ethernet",)
#: Not rx_dropped: packets of a protocol that nobody here speaks count there, such as a switch's LLDP (rtnl_link_stats64).
_ERRORS = ("rx_errors", "tx_errors", "rx_missed_errors", "tx_dropped")
_PACKETS = ("rx_packets", "tx_packets")
#: Fewer errors than this are no rate.
_LEAST_ERRORS = 100


def check(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each real interface that is switched on."""
    unread = said.unread(NAME, now, "nic.names", "network interfaces")
    if unread is not None:
        yield unread
        return
    judged = False
    for reading in now.of("nic.state"):
        row = now.table("nic.state", reading.subject)
        if row.get("virtual") is False and row.get("loopback") is False and (row.get("up") is True or _was_up(before, reading.subject)):
            judged = True
            yield _judged(now, before, reading.subject, limits)
    if not judged:
        yield CheckResult(NAME, HOST, Result.SKIPPED, "no Ethernet port of this machine's own is to be seen: a container, perhaps")


def _was_up(before: Readings | None, subject: str) -> bool:
    return before is not None and before.table("nic.state", subject).get("carrier") is True


def _judged(now: Readings, before: Readings | None, subject: str, limits: Thresholds) -> CheckResult:
    name, row = subject.removeprefix("nic:"), now.table("nic.state", subject)
    was = before.table("nic.state", subject) if before is not None else {}
    look, speed = f"ethtool {name}; ethtool -S {name} | grep -i err", said.figure(row, "speed_mb_s")
    evidence = (f"operstate {row.get('operstate')}", *((f"{speed:g} Mb/s",) if speed else ()))
    if row.get("carrier") is not True:
        if was.get("carrier") is True:
            why = f"{name} has no carrier, and had one when the job started"
            return CheckResult(NAME, subject, Result.FAILED, why, evidence, Repair.DRAIN, look)
        return CheckResult(NAME, subject, Result.DEGRADED, f"{name} is switched on and has no carrier", evidence, Repair.NONE, look)
    flaps = (said.figure(row, "carrier_changes") or 0) - (said.figure(was, "carrier_changes") or 0)
    if was and flaps > limits.carrier_changes_delta:
        why = f"{name} lost its carrier and got it back: {flaps:.0f} changes since the job started"
        return CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.REPLACE, look)
    old = said.figure(was, "speed_mb_s")
    if speed and old and speed < old:
        why = f"{name} runs at {speed:g} Mb/s, and at {old:g} when the job started"
        return CheckResult(NAME, subject, Result.DEGRADED, why, evidence, Repair.REPLACE, look)
    if before is not None:
        new, base = now.table("nic.counters", subject), before.table("nic.counters", subject)
        errors, packets = _gain(new, base, _ERRORS), _gain(new, base, _PACKETS)
        if errors >= _LEAST_ERRORS and errors > limits.ethernet_error_share * packets:
            told = tuple(f"{key} +{_gain(new, base, (key,)):.0f}" for key in _ERRORS)
            why = f"{name} lost {errors:.0f} of {packets:.0f} packets since the job started"
            return CheckResult(NAME, subject, Result.DEGRADED, why, told, Repair.DRAIN, look)
    return CheckResult(NAME, subject, Result.OK, f"{name} is up", evidence)


def _gain(new: dict[str, Json], old: dict[str, Json], keys: Iterable[str]) -> float:
    return sum(max(0.0, (said.figure(new, key) or 0.0) - (said.figure(old, key) or 0.0)) for key in keys)
