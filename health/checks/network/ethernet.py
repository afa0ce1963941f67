"""Checks of Ethernet ports, and of the interfaces that the job names."""

from __future__ import annotations

from collections import Counter
from shlex import quote
from typing import TYPE_CHECKING

from health.checks import common
from health.model import HOST, CheckResult, Repair, Result, check, elapsed_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from health.model import Json, Readings
    from health.thresholds import Thresholds

#: Not rx_dropped: packets of a protocol that nobody here speaks count there, such as a switch's LLDP (rtnl_link_stats64).
_ERRORS = ("rx_errors", "tx_errors", "rx_missed_errors", "tx_dropped")
_PACKETS = ("rx_packets", "tx_packets")
#: Fewer errors than this are not a rate.
_LEAST_ERRORS = 100


@check(
    "net_ethernet",
    subject="nic",
    needs=("ethernet",),
    reads="carrier, speed, bytes, errors of real Ethernet ports. Dropped packets are shown, and judged by their growth only",
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
    old_row = before.table("nic.state", subject) if before is not None else {}
    look, speed = (f"ethtool {quote(name)}", f"ethtool -S {quote(name)} | grep -i err"), common.number(row, "speed_mb_s")
    evidence, traffic = (f"operstate {row.get('operstate')}", *((f"{speed:g} Mb/s",) if speed else ())), _traffic(now, before, subject)
    if row.get("carrier") is not True:
        if old_row.get("carrier") is True:
            why = f"{name} has no carrier, and had one when the job started"
            return CheckResult("net_ethernet", subject, Result.FAILED, why, evidence, Repair.DRAIN, look=look)
        return CheckResult(
            "net_ethernet", subject, Result.DEGRADED, f"{name} is switched on and has no carrier", evidence, Repair.NONE, look=look
        )
    flaps = (common.number(row, "carrier_changes") or 0) - (common.number(old_row, "carrier_changes") or 0)
    if old_row and flaps > limits.carrier_changes_delta:
        why = f"{name} lost its carrier and got it back: {flaps:.0f} changes since the job started"
        return CheckResult("net_ethernet", subject, Result.DEGRADED, why, evidence, Repair.REPLACE, look=look)
    old = common.number(old_row, "speed_mb_s")
    if speed and old and speed < old:
        why = f"{name} runs at {speed:g} Mb/s, and at {old:g} when the job started"
        return CheckResult("net_ethernet", subject, Result.DEGRADED, why, evidence, Repair.REPLACE, look=look)
    if before is not None:
        new, base = now.table("nic.counters", subject), before.table("nic.counters", subject)
        errors, packets = _gain(new, base, _ERRORS), _gain(new, base, _PACKETS)
        if errors >= _LEAST_ERRORS and errors > limits.ethernet_error_share * packets:
            counters = tuple(f"{key} +{_gain(new, base, (key,)):.0f}" for key in _ERRORS)
            why = f"{name} lost {errors:.0f} of {packets:.0f} packets since the job started"
            return CheckResult("net_ethernet", subject, Result.DEGRADED, why, (*counters, *traffic), Repair.DRAIN, look=look)
    return CheckResult("net_ethernet", subject, Result.OK, "; ".join((f"{name} is up", *traffic)), evidence)


def _traffic(now: Readings, before: Readings | None, subject: str) -> tuple[str, ...]:
    """Return what went through a port: a rate since the job's start, else a total since the boot; nothing where it is not known."""
    new, base = now.table("nic.counters", subject), before.table("nic.counters", subject) if before is not None else {}
    arrived, left = common.number(new, "rx_bytes"), common.number(new, "tx_bytes")
    if arrived is None or left is None:
        return ()
    seconds = elapsed_s(now, before, "nic.counters", subject)
    if seconds is None or not {"rx_bytes", "tx_bytes"} <= base.keys():
        return (f"{common.size(arrived)} in, {common.size(left)} out since the boot",)
    rates = [common.size(_gain(new, base, (name,)) / seconds) for name in ("rx_bytes", "tx_bytes")]
    dropped = _gain(new, base, ("rx_dropped",))
    return (f"{rates[0]}/s in, {rates[1]}/s out, {dropped:.0f} packets that nobody here took, in {seconds:.0f} s",)


def _gain(new: dict[str, Json], old: dict[str, Json], keys: Iterable[str]) -> float:
    return sum(max(0.0, (common.number(new, key) or 0.0) - (common.number(old, key) or 0.0)) for key in keys)


@check(
    "net_mtu",
    subject="host",
    needs=("ethernet", "infiniband"),
    reads="MTU of ports of one speed, of a bond and its members",
    degraded="not all the same",
)
def net_mtu(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Do this node's ports of one speed have one MTU, and a bond and its members? If not, large packets are lost and the job hangs."""
    rows = {reading.subject.removeprefix("nic:"): now.table("nic.state", reading.subject) for reading in now.of("nic.state")}
    up = {name: row for name, row in rows.items() if row.get("carrier") is True and row.get("virtual") is False and row.get("mtu")}
    if not up:
        yield CheckResult("net_mtu", HOST, Result.SKIPPED, "no Ethernet port of this machine's own is up")
        return
    results = [result for result in (*_bond_mtus(rows, up), *_speed_mtus(up)) if result is not None]
    yield from results or [
        CheckResult(
            "net_mtu", HOST, Result.OK, "ports of one speed have one MTU", tuple(f"{name} {row['mtu']}" for name, row in up.items())
        )
    ]


def _speed_mtus(up: dict[str, dict[str, Json]]) -> Iterator[CheckResult | None]:
    for speed in dict.fromkeys(str(row.get("speed_mb_s")) for row in up.values() if row.get("speed_mb_s")):
        # of unknown speed: they need have nothing to do with each other, and one of them may be the way in
        mtus = {name: int(str(row["mtu"])) for name, row in up.items() if str(row.get("speed_mb_s")) == speed and not row.get("bond")}
        counts = Counter(mtus.values())
        yield _mtu_result(mtus, max(counts, key=lambda mtu: (counts[mtu], mtu), default=0), "ports of the same speed")


def _bond_mtus(rows: dict[str, dict[str, Json]], up: dict[str, dict[str, Json]]) -> Iterator[CheckResult | None]:
    """Judge each bond that is known, as Oracle's cluster verification does (PRVE-00468): its MTU goes out by every member."""
    for bond in dict.fromkeys(str(row["bond"]) for row in up.values() if row.get("bond")):
        members = {name: int(str(row["mtu"])) for name, row in up.items() if row.get("bond") == bond}
        mtu = common.number(rows.get(bond, {}), "mtu")
        yield _mtu_result(members, int(mtu or max(members.values())), f"the bond {bond}")


def _mtu_result(mtus: dict[str, int], usual: int, others: str) -> CheckResult | None:
    wrong = [name for name, mtu in mtus.items() if mtu != usual]
    if not wrong:
        return None
    why = f"{', '.join(wrong)}: another MTU than {others} ({usual})"
    evidence = tuple(f"{name} {mtu}" for name, mtu in mtus.items())
    command = f"ip link set {quote(wrong[0])} mtu {usual}"
    return CheckResult("net_mtu", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, command)


#: Programs may ask for less or more, up to rmem_max and wmem_max; neither NCCL nor gloo does, so that these are shown and not judged.
_BUFFERS = {"receive_most": "net.ipv4.tcp_rmem", "send_most": "net.ipv4.tcp_wmem"}
_SHOWN_BUFFERS = {**_BUFFERS, "receive_by_program": "net.core.rmem_max", "send_by_program": "net.core.wmem_max"}


@check(
    "net_buffers",
    subject="host",
    needs=("ethernet",),
    reads="how large TCP's buffers may become, where a port of 10 Gb/s or more is up",
    degraded="lowered to less than 4 MiB; windows limited to 64 KiB",
)
def net_buffers(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Are TCP's buffers large enough for this node's fast ports? Checkpoints, loaders and NCCL without InfiniBand go by TCP."""
    rows = {reading.subject.removeprefix("nic:"): now.table("nic.state", reading.subject) for reading in now.of("nic.state")}
    fast = {
        name: speed
        for name, row in rows.items()
        if row.get("virtual") is False
        and row.get("carrier") is True
        and (speed := common.number(row, "speed_mb_s") or 0.0) >= limits.fast_port_mb_s
    }
    row = now.table("tcp.buffers")
    if not fast or not row:
        why = "no port of this machine's own is known to be so fast that it matters" if not fast else "TCP's buffers: not visible here"
        yield CheckResult("net_buffers", HOST, Result.SKIPPED, why)
        return
    evidence = tuple(f"{name} {row[key]}" for key, name in _SHOWN_BUFFERS.items() if key in row)
    port, speed = max(fast.items(), key=lambda item: item[1])
    link = f"{port} has {speed / 1000:g} Gb/s"
    least = limits.tcp_buffer_mib * (1 << 20)
    small = {key: size for key in _BUFFERS if (size := common.number(row, key)) is not None and size < least}
    look = tuple(f"sysctl {name}" for name in (*_BUFFERS.values(), "net.ipv4.tcp_window_scaling"))
    if row.get("scaling") is False:
        why = f"TCP windows are limited to 64 KiB (net.ipv4.tcp_window_scaling=0), and {link}: {_a_round_trip(1 << 16)}"
        command = "sysctl -w net.ipv4.tcp_window_scaling=1"
        yield CheckResult("net_buffers", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, command, look=look)
    if small:
        key = min(small, key=lambda key: small[key])
        most = common.size(small[key])
        why = f"a TCP buffer becomes no larger than {most} ({_BUFFERS[key]}), and {link}: {_a_round_trip(small[key])}"
        command = " ".join(("sysctl -w", *(f"{_BUFFERS[key]}='4096 131072 16777216'" for key in small)))
        yield CheckResult("net_buffers", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, command, look=look)
    elif row.get("scaling") is not False:
        yield CheckResult("net_buffers", HOST, Result.OK, f"TCP's buffers suffice for the {speed / 1000:g} Gb/s of {port}", evidence)


def _a_round_trip(size: float) -> str:
    """Say what one connection carries at most."""
    return f"one connection carries {size * 8 / 1e6:.1f} Gb/s at most where a round trip takes 1 ms"


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
