"""InfiniBand, RoCE and EFA ports: state, rate, counters, carrier.

Reads /sys/class/infiniband and the kernel's log; writes nothing. Readings of `port:DEVICE/NUMBER`: `port.state` (state and phys_state as
words, rate_gb_s, link_layer, driver, device, pci, netdev; carrier, mtu and carrier_changes of the netdev, None if unknown) and
`port.counters` (name → count, for the names of COUNTERS that the port has). Readings of `host`: `port.devices` (names of all devices) and
`port.verbs` (names of the devices that programs may open).

Some ports belong to the firmware (of ConnectX functions on NVSwitch boards): each read of them makes the kernel print `ACCESS_REG …
failed` and gives EINVAL (node_exporter#3434, gpud#1164). We skip a device that the log names or ask.options["infiniband"]["exclude"]
lists. If a device answers EINVAL, we stop reading it for the session. The readings of a skipped device have the problem `not_supported`.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.kernellog import kmsg_reader as kmsg
from health.model import HOST, NOT_SUPPORTED, Json, Reading
from health.probes import system_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "infiniband"
_CLASS: Final = "/sys/class/infiniband"
_COMPLAINT: Final = re.compile(rb"mlx5_core (\S+?): .*ACCESS_REG\(.*failed")
#: Only the counters that net_counters judges, because each read is a command to the card.
COUNTERS: Final = frozenset(
    {
        "excessive_buffer_overrun_errors",
        "link_downed",
        "link_error_recovery",
        "local_ack_timeout_err",
        "local_link_integrity_errors",
        "port_rcv_errors",
        "port_xmit_discards",
        "rnr_nak_retry_err",
        "roce_slow_restart",
        "symbol_error",
    }
)
#: Upper limit of the records of the kernel's log that we search.
_MOST_RECORDS: Final = 100_000


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the readings of each port."""
    yield from Ports().read(ask)


def session() -> Ports:
    """Return a reader that remembers the devices to skip."""
    return Ports()


class Ports:
    """Reads ports, and remembers the devices whose reading makes the kernel complain."""

    def __init__(self) -> None:
        self._skipped: set[str] = set()  # PCI addresses; the name of a device that has none
        self._log_read = False

    def read(self, ask: Ask) -> Iterator[Reading]:
        """Yield the readings of each port."""
        root = Path(ask.at(_CLASS))
        try:
            devices = system_files.listed(root)
        except OSError as error:
            yield system_files.unread(NAME, HOST, "port.devices", error, root)
            return
        yield Reading(NAME, HOST, "port.devices", [*devices])
        if devices and not self._log_read:
            self._log_read = True
            self._skipped |= _complained(ask.at(kmsg.KMSG))
        verbs = Path(ask.at("/sys/class/infiniband_verbs"))
        served = sorted(filter(None, (system_files.text(path / "ibdev") for path in _entries(verbs))))
        yield Reading(NAME, HOST, "port.verbs", [*served])
        options = ask.options.get(NAME)
        excluded = options.get("exclude") if isinstance(options, dict) else None
        for name in devices:
            is_excluded = isinstance(excluded, list) and name in excluded
            device = _target(root / name / "device") or name
            for port in _entries(root / name / "ports"):
                subject = f"port:{name}/{port.name}"
                if is_excluded or not self._readable(port, device):
                    for one in ("port.state", "port.counters"):
                        yield Reading(NAME, subject, one, None, NOT_SUPPORTED)
                    continue
                yield Reading(NAME, subject, "port.state", {**_state(root / name, port)})
                yield self._counters(subject, port, device)

    def close(self) -> None:
        """Nothing is open."""

    def _readable(self, port: Path, device: str) -> bool:
        """Return whether the port may be read: False from the first EINVAL of its device on. The rate is the first command to the card."""
        if device not in self._skipped:
            try:
                (port / "rate").read_bytes()
            except OSError as error:
                if error.errno == errno.EINVAL:
                    self._skipped.add(device)
        return device not in self._skipped

    def _counters(self, subject: str, port: Path, device: str) -> Reading:
        found: dict[str, Json] = {}
        for directory in ("counters", "hw_counters"):
            for file in _entries(port / directory):
                if file.name not in COUNTERS:
                    continue
                try:
                    words = file.read_text("ascii", "replace").strip()
                except OSError as error:
                    if error.errno == errno.EINVAL:
                        self._skipped.add(device)
                        return Reading(NAME, subject, "port.counters", None, NOT_SUPPORTED)
                    continue
                if words.isdecimal():  # "N/A (no PMA)" is no number
                    found[file.name] = int(words)
        return Reading(NAME, subject, "port.counters", found or None, "" if found else NOT_SUPPORTED)


def _state(device: Path, port: Path) -> dict[str, Json]:
    netdev = system_files.text(port / "gid_attrs/ndevs/0") or next((path.name for path in _entries(device / "device/net")), "")
    net = device / "device/net" / netdev
    carrier = system_files.whole(net / "carrier") if netdev else None
    rate = re.match(r"[\d.]+", system_files.text(port / "rate"))
    return {
        "state": _word(port / "state"),
        "phys_state": _word(port / "phys_state"),
        "rate_gb_s": float(rate[0]) if rate is not None else None,
        "link_layer": system_files.text(port / "link_layer"),
        "driver": _target(device / "device/driver"),
        "device": device.name,
        "pci": _target(device / "device"),
        "netdev": netdev,
        "carrier": None if carrier is None else bool(carrier),
        "carrier_changes": system_files.whole(net / "carrier_changes") if netdev else None,
        "mtu": system_files.whole(net / "mtu") if netdev else None,
    }


def _word(path: Path) -> str:
    """Return the word of `4: ACTIVE`."""
    return system_files.text(path).partition(":")[2].strip()


def _target(path: Path) -> str:
    try:
        return path.resolve().name if path.is_symlink() else ""
    except OSError:
        return ""


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _complained(path: str) -> set[str]:
    """Return the PCI addresses of the devices whose reading the kernel has complained about."""
    found: set[str] = set()
    try:
        log = kmsg.Device(path, whole=True)
    except OSError:  # we may not read the log: the first EINVAL shows such a device
        return found
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
                found.add(os.fsdecode(match[1]))
    except OSError:  # BlockingIOError: its end
        pass
    finally:
        log.close()
    return found
