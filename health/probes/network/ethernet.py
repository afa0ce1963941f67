"""Network interfaces: carrier, speed, MTU, errors, addresses.

Reads /sys/class/net, and the addresses by psutil. The counters are the kernel's own: psutil's `dropin` has those that a switch's LLDP
raises. Yields, of `nic:NAME`: `nic.state` (operstate, carrier: None where it is switched off, speed_mb_s, mtu, carrier_changes, up,
loopback, virtual, ipv4), `nic.counters` (packets, errors, drops of both directions, and others of the kernel's).
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import HOST, Json, Reading
from health.probes import system_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from health.model import Ask

NAME: Final = "ethernet"
_CLASS: Final = "/sys/class/net"
_UP, _LOOPBACK = 0x1, 0x8
_COUNTERS: Final = (
    "rx_packets",
    "tx_packets",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "tx_carrier_errors",
    "collisions",
)


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the readings of each interface."""
    root = Path(ask.at(_CLASS))
    try:
        names = [name for name in system_files.listed(root) if (root / name).is_dir()]  # bonding_masters is a file
    except OSError as error:
        yield system_files.unread(NAME, HOST, "nic.names", error, root)
        return
    yield Reading(NAME, HOST, "nic.names", [*names])
    addresses = _addresses() if ask.root == "/" else {}
    for name in names:
        yield Reading(NAME, f"nic:{name}", "nic.state", _state(root / name, addresses))
        counters = {key: system_files.whole(root / name / "statistics" / key) for key in _COUNTERS}
        found: dict[str, Json] = {key: value for key, value in counters.items() if value is not None}
        yield Reading(NAME, f"nic:{name}", "nic.counters", found)


def _state(nic: Path, addresses: Mapping[str, str]) -> dict[str, Json]:
    flags = system_files.text(nic / "flags")
    bits = int(flags, 16) if flags.startswith("0x") else 0
    carrier, speed = system_files.whole(nic / "carrier"), system_files.whole(nic / "speed")
    return {
        "operstate": system_files.text(nic / "operstate"),
        "carrier": None if carrier is None else bool(carrier),
        "speed_mb_s": speed if speed is not None and speed > 0 else None,
        "mtu": system_files.whole(nic / "mtu"),
        "carrier_changes": system_files.whole(nic / "carrier_changes"),
        "up": bool(bits & _UP),
        "loopback": bool(bits & _LOOPBACK),
        "virtual": not (nic / "device").exists(),
        "ipv4": addresses.get(nic.name, ""),
    }


def _addresses() -> dict[str, str]:
    """Return the first IPv4 address of each interface that has one."""
    import psutil  # noqa: PLC0415  a supervisor imports this module, and most look at no interface

    rows = [(name, row) for name, addresses in psutil.net_if_addrs().items() for row in reversed(addresses)]
    return {name: row.address for name, row in rows if row.family == socket.AF_INET}
