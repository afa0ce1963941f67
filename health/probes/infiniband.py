"""The InfiniBand, RoCE and EFA ports of a node, as records: for the probe `infiniband`, and for `supervise print`. No probe itself.

Reads /sys/class/infiniband and the kernel's log; writes nothing. What cannot be read is None, "" or missing, never 0.

Some ports belong to the firmware (of ConnectX functions on NVSwitch boards): each read of them makes the kernel print `ACCESS_REG …
failed` and gives EINVAL (node_exporter#3434, gpud#1164). We skip a device that the log names or the caller excludes. If a device answers
EINVAL, a reader asks it no more.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.kernellog import kmsg_reader as kmsg
from health.nvidia.gids import IB, ROCE_V1, ROCE_V2, Gid
from health.probes import system_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_ROOT: Final = Path("/")
_CLASS: Final = "sys/class/infiniband"
_COMPLAINT: Final = re.compile(rb"mlx5_core (\S+?): .*ACCESS_REG\(.*failed")
#: Upper limit of the records of the kernel's log that we search.
_MOST_RECORDS: Final = 100_000
#: The kernel's names of GID types: RoCE v1 and InfiniBand have one between them (Documentation/ABI/testing/sysfs-class-infiniband).
_V1, _V2 = "IB/RoCE v1", "RoCE v2"
_ETHERNET: Final = "Ethernet"
#: iWARP's ports (node type RNIC) have Ethernet below them too, and no GIDs of RoCE.
_CHANNEL_ADAPTER: Final = "CA"


@dataclass(frozen=True, slots=True)
class Port:
    """One port. is_read: False for one that is left alone, of which only device, pci and number are known.

    state, phys_state: the kernel's words, such as ACTIVE and LinkUp. rate_gb_s: gigabits a second. link_layer: InfiniBand or Ethernet.
    pci: the address of its card. netdev, and its carrier, carrier_changes and mtu: the network interface of the port, "" and None for none.
    numa_node: of its card, None where the machine has one node or does not say. gids: the entries of its table that are not empty.
    """

    device: str
    number: int
    is_read: bool = True
    pci: str = ""
    driver: str = ""
    node_type: str = ""
    state: str = ""
    phys_state: str = ""
    rate_gb_s: float | None = None
    link_layer: str = ""
    netdev: str = ""
    carrier: bool | None = None
    carrier_changes: int | None = None
    mtu: int | None = None
    numa_node: int | None = None
    gids: tuple[Gid, ...] = ()

    @property
    def is_active(self) -> bool:
        """Return whether it is up. EFA's driver always says so: there the carrier shows it."""
        return self.state == "ACTIVE" and self.carrier is not False

    @property
    def is_roce(self) -> bool:
        """Return whether it carries RDMA over Ethernet."""
        return self.link_layer == _ETHERNET and self.node_type in (_CHANNEL_ADAPTER, "")


def ports(root: Path = _ROOT, excluded: Collection[str] = ()) -> tuple[Port, ...]:
    """Return all ports that may be read, by device and number; none where the kernel has no InfiniBand.

    Raises OSError where the kernel has it and it cannot be read.

    root: the folder that holds /sys and /dev. excluded: names of devices to leave alone.
    """
    try:
        return tuple(port for port in PortReader(root).ports(excluded) if port.is_read)
    except FileNotFoundError:
        return ()


class PortReader:
    """Reads ports, and remembers the devices whose reading makes the kernel complain."""

    def __init__(self, root: Path = _ROOT) -> None:
        self.root = root
        self._skipped: set[str] = set()  # PCI addresses; the name of a device that has none
        self._log_read = False

    def devices(self) -> list[str]:
        """Return the names of all devices. Raises OSError."""
        return system_files.listed(self.root / _CLASS)

    def ports(self, excluded: Collection[str] = ()) -> Iterator[Port]:
        """Yield the ports of all devices, those that are left alone too. Raises OSError."""
        devices = self.devices()
        if devices and not self._log_read:
            self._log_read = True
            self._skipped |= _complained(str(self.root / kmsg.KMSG.lstrip("/")))
        for name in devices:
            for path in entries(self.root / _CLASS / name / "ports"):
                pci = system_files.link_name(path.parent.parent / "device")
                if not path.name.isdecimal():
                    continue
                if name in excluded or not self._readable(path, pci or name):
                    yield Port(name, int(path.name), is_read=False, pci=pci)
                else:
                    yield _port(path, pci)

    def leave(self, port: Port) -> None:
        """Read this port's device no more: it answered EINVAL."""
        self._skipped.add(port.pci or port.device)

    def path(self, port: Port) -> Path:
        """Return the directory of a port."""
        return self.root / _CLASS / port.device / "ports" / str(port.number)

    def _readable(self, path: Path, device: str) -> bool:
        """Return whether the port may be read: False from the first EINVAL of its device on. The rate is the first command to the card."""
        if device not in self._skipped:
            try:
                (path / "rate").read_bytes()
            except OSError as error:
                if error.errno == errno.EINVAL:
                    self._skipped.add(device)
        return device not in self._skipped


def entries(directory: Path) -> list[Path]:
    """Return the sorted entries of a directory, none where it cannot be read."""
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _port(path: Path, pci: str) -> Port:
    device = path.parent.parent
    netdev = system_files.text(path / "gid_attrs/ndevs/0") or next((entry.name for entry in entries(device / "device/net")), "")
    net = device / "device/net" / netdev
    carrier = system_files.whole(net / "carrier") if netdev else None
    rate = re.match(r"[\d.]+", system_files.text(path / "rate"))
    link_layer, numa_node = system_files.text(path / "link_layer"), system_files.whole(device / "device/numa_node")
    return Port(
        device=device.name,
        number=int(path.name),
        pci=pci,
        driver=system_files.link_name(device / "device/driver"),
        node_type=_word(device / "node_type"),
        state=_word(path / "state"),
        phys_state=_word(path / "phys_state"),
        rate_gb_s=float(rate[0]) if rate is not None else None,
        link_layer=link_layer,
        netdev=netdev,
        carrier=None if carrier is None else bool(carrier),
        carrier_changes=system_files.whole(net / "carrier_changes") if netdev else None,
        mtu=system_files.whole(net / "mtu") if netdev else None,
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        gids=tuple(_gids(path, is_ethernet=link_layer == _ETHERNET)),
    )


def _gids(path: Path, *, is_ethernet: bool) -> Iterator[Gid]:
    """Yield the entries that are not empty. The kernel answers from memory; the type of an empty entry is EINVAL."""
    numbers = sorted(int(entry.name) for entry in entries(path / "gids") if entry.name.isdecimal())
    for index in numbers:
        gid = system_files.text(path / "gids" / str(index))
        if not gid.strip("0:"):  # most of some hundred
            continue
        word = system_files.text(path / "gid_attrs/types" / str(index))
        kind = {_V1: ROCE_V1 if is_ethernet else IB, _V2: ROCE_V2}.get(word, "")
        yield Gid(index, gid, kind, system_files.text(path / "gid_attrs/ndevs" / str(index)))


def _word(path: Path) -> str:
    """Return the word of `4: ACTIVE`."""
    return system_files.text(path).partition(":")[2].strip()


def _complained(path: str) -> set[str]:
    """Return the PCI addresses of the devices whose reading the kernel has complained about."""
    addresses: set[str] = set()
    try:
        log = kmsg.Device(path, whole=True)
    except OSError:  # we may not read the log: the first EINVAL shows such a device
        return addresses
    try:
        for _ in range(_MOST_RECORDS):
            try:
                data = log.read()
            except BrokenPipeError:
                continue
            if not data:
                break
            match = _COMPLAINT.search(data)
            if match is not None:
                addresses.add(os.fsdecode(match[1]))
    except OSError:  # BlockingIOError: its end
        pass
    finally:
        log.close()
    return addresses
