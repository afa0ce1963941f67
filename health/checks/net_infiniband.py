"""Are the InfiniBand, RoCE and EFA ports up? Also at the rate of their siblings, and with their device files there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, NOT_SUPPORTED, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from health.model import Json, Readings
    from health.thresholds import Thresholds

NAME = "net_infiniband"
NEEDS = ("infiniband",)


def check(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each port, by what it was at the job's start and by its siblings."""
    ports = {reading.subject: now.table("port.state", reading.subject) for reading in now.of("port.state")}
    was = {one.subject: before.table("port.state", one.subject) for one in before.of("port.state")} if before is not None else {}
    for subject in was.keys() - ports.keys():
        why = f"port {_name(subject)} is gone since the job started"
        yield CheckResult(NAME, subject, Result.FAILED, why, (), Repair.REBOOT, "dmesg -T | grep -i mlx5; ibstat")
    unread = said.unread(NAME, now, "port.devices", "InfiniBand devices")
    if unread is not None:
        if not was:
            yield unread
        return
    if not ports and not was:
        yield CheckResult(NAME, HOST, Result.SKIPPED, "no InfiniBand, RoCE or EFA port is here")
    yield from _verbs(now)
    for subject, row in ports.items():
        if now.problem("port.state", subject) == NOT_SUPPORTED:
            why = f"port {_name(subject)}: not asked: it is excluded, or reading it makes the kernel complain"
            yield CheckResult(NAME, subject, Result.SKIPPED, why)
        elif _up(row):
            siblings = [one for name, one in ports.items() if name != subject and _kind(one) == _kind(row)]
            yield _running(subject, row, was.get(subject, {}), siblings, limits)
        else:
            yield _down(subject, row, was.get(subject, {}), any(_up(one) for one in ports.values() if _kind(one) == _kind(row)))


def _down(subject: str, row: dict[str, Json], was: dict[str, Json], others_up: bool) -> CheckResult:  # noqa: FBT001 -- one caller
    who, evidence, look = f"port {_name(subject)}", _evidence(row), _look(row)
    # EFA's driver says ACTIVE whatever the wire does: only the carrier tells
    what = "has no carrier" if row.get("state") == "ACTIVE" else f"is {row.get('state') or 'of unknown state'} ({row.get('phys_state')})"
    if _up(was):
        return CheckResult(NAME, subject, Result.FAILED, f"{who} {what}, and was up when the job started", evidence, Repair.DRAIN, look)
    if others_up:
        return CheckResult(NAME, subject, Result.DEGRADED, f"{who} {what}, and others are up", evidence, Repair.DRAIN, look)
    return CheckResult(NAME, subject, Result.DEGRADED, f"{who} {what}: NCCL will not use it", evidence, Repair.NONE, look)


def _running(subject: str, row: dict[str, Json], was: dict[str, Json], siblings: list[dict[str, Json]], limits: Thresholds) -> CheckResult:
    who, rate, usual, old = f"port {_name(subject)}", said.figure(row, "rate_gb_s"), _usual(siblings), said.figure(was, "rate_gb_s")
    flaps = (said.figure(row, "carrier_changes") or 0) - (said.figure(was, "carrier_changes") or 0)
    why = ""
    if rate is not None and old is not None and rate < old:
        why = f"{who} runs at {rate:g} Gb/s, and at {old:g} when the job started"
    elif rate is not None and usual is not None and rate < usual:
        why = f"{who} runs at {rate:g} Gb/s, and its siblings at {usual:g}"
    elif was and flaps > limits.carrier_changes_delta:
        why = f"{who} lost its carrier and got it back: {flaps:.0f} changes since the job started"
    if why:
        return CheckResult(NAME, subject, Result.DEGRADED, why, _evidence(row), Repair.REPLACE, _look(row))
    return CheckResult(NAME, subject, Result.OK, f"{who} is up" + (f" at {rate:g} Gb/s" if rate is not None else ""), _evidence(row))


def _evidence(row: dict[str, Json]) -> tuple[str, ...]:
    return tuple(f"{key} {row.get(key)}" for key in ("state", "phys_state", "rate_gb_s", "link_layer", "netdev") if row.get(key))


def _look(row: dict[str, Json]) -> str:
    return f"ibstat {row.get('device')}; dmesg -T | grep {row.get('pci') or row.get('device')}"


def _verbs(now: Readings) -> Iterator[CheckResult]:
    devices, served = now.value("port.devices"), now.value("port.verbs")
    if not isinstance(devices, list) or not isinstance(served, list):
        return
    for name in devices:
        if name not in served:
            why = f"{name} has no device file in /dev/infiniband: no program can open it"
            yield CheckResult(NAME, f"port:{name}", Result.DEGRADED, why, (), Repair.CONFIGURE, "modprobe ib_uverbs; ls /dev/infiniband")


def _up(row: dict[str, Json]) -> bool:
    return row.get("state") == "ACTIVE" and row.get("carrier") is not False


def _kind(row: dict[str, Json]) -> tuple[Json, Json]:
    return row.get("driver"), row.get("link_layer")


def _usual(siblings: list[dict[str, Json]]) -> float | None:
    """Return the rate that more of the siblings have than any other, of two alike the higher."""
    rates = Counter(rate for one in siblings if _up(one) and (rate := said.figure(one, "rate_gb_s")) is not None)
    return max(rates, key=lambda rate: (rates[rate], rate), default=None)


def _name(subject: str) -> str:
    return subject.removeprefix("port:")
