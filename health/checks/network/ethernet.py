"""Checks of Ethernet ports, and of the interfaces that the job names."""

from __future__ import annotations

from collections import Counter
from shlex import quote
from typing import TYPE_CHECKING

from health.checks import common
from health.model import HOST, CheckResult, Repair, Result, check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from health.model import Json, Readings
    from health.thresholds import Thresholds

#: Not rx_dropped: packets of a protocol that nobody here speaks count there, such as a switch's LLDP (rtnl_link_stats64).
_ERRORS = ("rx_errors", "tx_errors", "rx_missed_errors", "tx_dropped")
_PACKETS = ("rx_packets", "tx_packets")
#: Fewer errors than this are no rate.
_LEAST_ERRORS = 100


@check(
    "net_ethernet",
    subject="nic",
    needs=("ethernet",),
    reads="carrier, speed, errors of real Ethernet ports",
    degraded="no carrier; slower or flapping since the job's start; one packet in 10 000 lost",
    failed="carrier lost since the job's start",
)
def net_ethernet(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Do the Ethernet ports have a carrier, keep it, and pass packets whole? Virtual and switched-off interfaces do not count."""
    unread = common.unread("net_ethernet", now, "nic.names", "network interfaces")
    if unread is not None:
        yield unread
        return
    judged = False
    for reading in now.of("nic.state"):
        row = now.table("nic.state", reading.subject)
        if row.get("virtual") is False and row.get("loopback") is False and (row.get("up") is True or _was_up(before, reading.subject)):
            judged = True
            yield _port(now, before, reading.subject, limits)
    if not judged:
        yield CheckResult(
            "net_ethernet", HOST, Result.SKIPPED, "no Ethernet port of this machine's own is to be seen: a container, perhaps"
        )


def _was_up(before: Readings | None, subject: str) -> bool:
    return before is not None and before.table("nic.state", subject).get("carrier") is True


def _port(now: Readings, before: Readings | None, subject: str, limits: Thresholds) -> CheckResult:
    name, row = subject.removeprefix("nic:"), now.table("nic.state", subject)
    was = before.table("nic.state", subject) if before is not None else {}
    look, speed = (f"ethtool {quote(name)}", f"ethtool -S {quote(name)} | grep -i err"), common.number(row, "speed_mb_s")
    evidence = (f"operstate {row.get('operstate')}", *((f"{speed:g} Mb/s",) if speed else ()))
    if row.get("carrier") is not True:
        if was.get("carrier") is True:
            why = f"{name} has no carrier, and had one when the job started"
            return CheckResult("net_ethernet", subject, Result.FAILED, why, evidence, Repair.DRAIN, look=look)
        return CheckResult(
            "net_ethernet", subject, Result.DEGRADED, f"{name} is switched on and has no carrier", evidence, Repair.NONE, look=look
        )
    flaps = (common.number(row, "carrier_changes") or 0) - (common.number(was, "carrier_changes") or 0)
    if was and flaps > limits.carrier_changes_delta:
        why = f"{name} lost its carrier and got it back: {flaps:.0f} changes since the job started"
        return CheckResult("net_ethernet", subject, Result.DEGRADED, why, evidence, Repair.REPLACE, look=look)
    old = common.number(was, "speed_mb_s")
    if speed and old and speed < old:
        why = f"{name} runs at {speed:g} Mb/s, and at {old:g} when the job started"
        return CheckResult("net_ethernet", subject, Result.DEGRADED, why, evidence, Repair.REPLACE, look=look)
    if before is not None:
        new, base = now.table("nic.counters", subject), before.table("nic.counters", subject)
        errors, packets = _gain(new, base, _ERRORS), _gain(new, base, _PACKETS)
        if errors >= _LEAST_ERRORS and errors > limits.ethernet_error_share * packets:
            settings = tuple(f"{key} +{_gain(new, base, (key,)):.0f}" for key in _ERRORS)
            why = f"{name} lost {errors:.0f} of {packets:.0f} packets since the job started"
            return CheckResult("net_ethernet", subject, Result.DEGRADED, why, settings, Repair.DRAIN, look=look)
    return CheckResult("net_ethernet", subject, Result.OK, f"{name} is up", evidence)


def _gain(new: dict[str, Json], old: dict[str, Json], keys: Iterable[str]) -> float:
    return sum(max(0.0, (common.number(new, key) or 0.0) - (common.number(old, key) or 0.0)) for key in keys)


@check(
    "net_mtu",
    subject="host",
    needs=("ethernet", "infiniband"),
    reads="MTU of ports of one speed",
    degraded="not all the same",
)
def net_mtu(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Do this node's ports of one speed have one MTU? If they differ, large packets are lost and the job hangs."""
    rows = {reading.subject.removeprefix("nic:"): now.table("nic.state", reading.subject) for reading in now.of("nic.state")}
    up = {name: row for name, row in rows.items() if row.get("carrier") is True and row.get("virtual") is False and row.get("mtu")}
    if not up:
        yield CheckResult("net_mtu", HOST, Result.SKIPPED, "no Ethernet port of this machine's own is up")
        return
    wrong = False
    for speed in dict.fromkeys(str(row.get("speed_mb_s")) for row in up.values() if row.get("speed_mb_s")):
        # of unknown speed: they need have nothing to do with each other, and one of them may be the way in
        mtus = {name: int(str(row["mtu"])) for name, row in up.items() if str(row.get("speed_mb_s")) == speed}
        counts = Counter(mtus.values())
        if len(counts) < 2:  # noqa: PLR2004 -- two differ
            continue
        wrong = True
        usual = max(counts, key=lambda mtu: (counts[mtu], mtu))
        others = [name for name, mtu in mtus.items() if mtu != usual]
        why = f"{', '.join(others)}: another MTU than ports of the same speed ({usual})"
        evidence = tuple(f"{name} {mtu}" for name, mtu in mtus.items())
        yield CheckResult("net_mtu", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, f"ip link set {quote(others[0])} mtu {usual}")
    if not wrong:
        yield CheckResult(
            "net_mtu", HOST, Result.OK, "ports of one speed have one MTU", tuple(f"{name} {row['mtu']}" for name, row in up.items())
        )


#: One name, or several, each exact.
_EXACT_VARIABLES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


@check(
    "net_interfaces",
    subject="host",
    needs=("environment", "ethernet", "infiniband"),
    reads="`NCCL_SOCKET_IFNAME`, `NCCL_IB_HCA`, gloo's",
    degraded="no such InfiniBand device, or some are not active",
    failed="no such interface, or it is down",
)
def net_interfaces(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Do the interfaces exist that the job's variables name for NCCL and gloo? A missing one is an error on every rank."""
    variables = now.table("env.variables")
    names, devices = now.value("nic.names"), now.value("port.devices")
    if not isinstance(names, list):
        yield CheckResult("net_interfaces", HOST, Result.UNKNOWN, "network interfaces: not visible here")
        return
    nics = [str(name) for name in names]
    hcas = [str(name) for name in devices] if isinstance(devices, list) else []
    results = [*_socket_interfaces(now, variables, nics), *_hca_devices(now, variables, hcas)]
    settings = tuple(
        f"{key}={value}" for key, value in variables.items() if key in ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", *_EXACT_VARIABLES)
    )
    yield from results or [
        CheckResult(
            "net_interfaces", HOST, Result.OK, "what the variables name is there" if settings else "left to NCCL and gloo", settings
        )
    ]


def _socket_interfaces(now: Readings, variables: dict[str, Json], nics: list[str]) -> Iterator[CheckResult]:
    for key in ("NCCL_SOCKET_IFNAME", *_EXACT_VARIABLES):
        value = variables.get(key)
        if not isinstance(value, str) or not value:
            continue
        chosen = names_chosen(value, nics, exact=key in _EXACT_VARIABLES)
        # NCCL's documentation: lo and docker* are taken only where nothing else is, or where they are named
        if not chosen:
            why = f"{key}={value}: no such interface is here"
            hint = f"unset {key}, or name one of: {', '.join(nics)}"
            yield CheckResult("net_interfaces", HOST, Result.FAILED, why, tuple(nics), Repair.CONFIGURE, hint)
        elif not any(_is_usable(now, name) for name in chosen):
            why = f"{key}={value}: {', '.join(chosen)} is down"
            yield CheckResult(
                "net_interfaces",
                HOST,
                Result.FAILED,
                why,
                (),
                Repair.CONFIGURE,
                f"ip link set {quote(chosen[0])} up",
                look=(f"ip link show {quote(chosen[0])}",),
            )


def _hca_devices(now: Readings, variables: dict[str, Json], hcas: list[str]) -> Iterator[CheckResult]:
    value = variables.get("NCCL_IB_HCA")
    if not isinstance(value, str) or not value:
        return
    chosen = names_chosen(value, hcas, exact=False)
    if not chosen:
        why = f"NCCL_IB_HCA={value}: no such device is here: NCCL goes by way of sockets"
        hint = f"unset NCCL_IB_HCA, or name one of: {', '.join(hcas) or 'none is here'}"
        yield CheckResult("net_interfaces", HOST, Result.DEGRADED, why, tuple(hcas), Repair.CONFIGURE, hint)
        return
    down = [name for name in chosen if not _is_active(now, name)]
    if down:
        result = Result.FAILED if down == chosen else Result.DEGRADED
        why = f"NCCL_IB_HCA={value}: {', '.join(down)} is not active"
        yield CheckResult("net_interfaces", HOST, result, why, (), Repair.DRAIN, look=("ibstat",))


def names_chosen(value: str, names: list[str], *, exact: bool) -> list[str]:
    """Return what a list chooses: prefixes; after = exact names; after ^ all but these (NCCL's documentation of both variables)."""
    without = value.startswith("^")
    rest = value.removeprefix("^")
    exact = exact or rest.startswith("=")
    words = [word.strip().partition(":")[0] for word in rest.removeprefix("=").split(",") if word.strip()]
    return [name for name in names if any(name == word if exact else name.startswith(word) for word in words) != without]


def _is_usable(now: Readings, name: str) -> bool:
    row = now.table("nic.state", f"nic:{name}")
    return row.get("up") is True and (row.get("carrier") is not False or row.get("loopback") is True)


def _is_active(now: Readings, name: str) -> bool:
    ports = [reading for reading in now.of("port.state") if reading.subject.startswith(f"port:{name}/")]
    return any(now.table("port.state", reading.subject).get("state") == "ACTIVE" for reading in ports)
