"""The network interfaces of a node, as records: for the probe `ethernet`, and for `supervise print`. No probe itself.

Reads /sys/class/net and /proc/net, and the addresses by psutil. The counters are the files of /sys: psutil's `dropin` adds up what a card
could not take in and the packets of a protocol that nobody here speaks, such as a switch's LLDP. What cannot be read is None, "" or
missing, never 0.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.probes import system_files

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT: Final = Path("/")
_UP, _LOOPBACK = 0x1, 0x8
#: Columns of a row of /proc/net/route: interface, destination, flags, metric, mask.
_INTERFACE, _DESTINATION, _FLAGS, _METRIC, _MASK, _ROUTE_FIELDS = 0, 1, 3, 6, 7, 8
#: Columns of a row of /proc/net/ipv6_route, whose numbers are hexadecimal: destination, its length, metric, interface.
_DESTINATION_6, _LENGTH_6, _METRIC_6, _INTERFACE_6, _ROUTE_FIELDS_6 = 0, 1, 5, 9, 10
COUNTERS: Final = (
    "rx_bytes",
    "tx_bytes",
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


@dataclass(frozen=True, slots=True)
class Nic:
    """One network interface.

    driver: the kernel module of its card, "" for an interface without one. is_virtual: no card is behind it (lo, a bond, a bridge, veth).
    is_up: it is switched on. carrier: whether the link is there; None where it is switched off. speed_mb_s: megabits a second. numa_node:
    of its card, None where the machine has one node or does not say. addresses: IPv4 first, without prefix length. bond: the bond that it
    is a member of, "" for none. is_bond: it is a bond itself. counters: since the boot, those of COUNTERS that it has.
    """

    name: str
    driver: str = ""
    is_virtual: bool = True
    is_loopback: bool = False
    is_up: bool = False
    is_default_route: bool = False
    operstate: str = ""
    carrier: bool | None = None
    carrier_changes: int | None = None
    speed_mb_s: int | None = None
    mtu: int | None = None
    numa_node: int | None = None
    bond: str = ""
    is_bond: bool = False
    addresses: tuple[str, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def ipv4(self) -> str:
        """Return its first IPv4 address, "" for none."""
        return next((address for address in self.addresses if ":" not in address), "")


def nics(root: Path = _ROOT, addresses: Mapping[str, Sequence[str]] | None = None) -> tuple[Nic, ...]:
    """Return all interfaces, by name. Raises OSError where /sys/class/net cannot be read.

    root: the folder that holds /sys and /proc. addresses: by interface; None: those of this machine, and none where `root` is another.
    """
    folder = root / "sys/class/net"
    names = [name for name in system_files.listed(folder) if (folder / name).is_dir()]  # bonding_masters is a file
    if addresses is None:
        addresses = _addresses() if root == _ROOT else {}
    default = _default_route(root / "proc/net")
    return tuple(_nic(folder / name, tuple(addresses.get(name, ())), is_default=name == default) for name in names)


def _nic(path: Path, addresses: tuple[str, ...], *, is_default: bool) -> Nic:
    flags = system_files.text(path / "flags")
    bits = int(flags, 16) if flags.startswith("0x") else 0
    carrier, speed = system_files.whole(path / "carrier"), system_files.whole(path / "speed")
    numa_node = system_files.whole(path / "device/numa_node")
    counters = {name: system_files.whole(path / "statistics" / name) for name in COUNTERS}
    return Nic(
        name=path.name,
        driver=system_files.link_name(path / "device/driver"),
        is_virtual=not (path / "device").exists(),
        is_loopback=bool(bits & _LOOPBACK),
        is_up=bool(bits & _UP),
        is_default_route=is_default,
        operstate=system_files.text(path / "operstate"),
        carrier=None if carrier is None else bool(carrier),
        carrier_changes=system_files.whole(path / "carrier_changes"),
        speed_mb_s=speed if speed is not None and speed > 0 else None,
        mtu=system_files.whole(path / "mtu"),
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        bond=system_files.link_name(path / "master") if (path / "master/bonding").is_dir() else "",
        is_bond=(path / "bonding").is_dir(),
        addresses=addresses,
        counters={name: count for name, count in counters.items() if count is not None},
    )


def _addresses() -> dict[str, list[str]]:
    """Return the addresses of each interface of this machine, IPv4 first."""
    import psutil  # noqa: PLC0415  a supervisor imports this module, and most look at no interface

    table: dict[str, list[str]] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        for name, rows in psutil.net_if_addrs().items():
            table.setdefault(name, []).extend(row.address.partition("%")[0] for row in rows if row.family == family)
    return table


def _default_route(proc_net: Path) -> str:
    """Return the interface of the default route, of the smallest metric; of IPv6 where IPv4 has none; "" for none."""
    routes: list[tuple[int, str]] = []
    for line in system_files.text(proc_net / "route").splitlines()[1:]:
        row = line.split()
        if len(row) >= _ROUTE_FIELDS and {row[_DESTINATION], row[_MASK]} == {"00000000"} and int(row[_FLAGS], 16) & _UP:
            routes.append((int(row[_METRIC]), row[_INTERFACE]))
    if not routes:
        for line in system_files.text(proc_net / "ipv6_route").splitlines():
            row = line.split()
            if len(row) >= _ROUTE_FIELDS_6 and row[_LENGTH_6] == "00" and not int(row[_DESTINATION_6], 16) and row[_INTERFACE_6] != "lo":
                routes.append((int(row[_METRIC_6], 16), row[_INTERFACE_6]))
    return min(routes, default=(0, ""))[1]
