"""InfiniBand, RoCE and EFA ports: state, rate, counters, carrier.

Reads /sys/class/infiniband, and the kernel's log. Yields, of `port:DEVICE/NUMBER`: `port.state` (state and phys_state as words, rate_gb_s,
link_layer, driver, device, pci, netdev; of the netdev: carrier, None for not known, mtu, carrier_changes), `port.counters` (name → count,
those of COUNTERS that it has); of `host`: `port.devices` and `port.verbs` (names of devices, and of those that programs may open).
Nothing is written.

Some ports belong to the firmware (of ConnectX functions on NVSwitch boards): each read of them makes the kernel print `ACCESS_REG …
failed` and gives EINVAL (node_exporter#3434, gpud#1164). A device that the log names so is not asked, nor one of
ask.options["infiniband"]["exclude"]; one that answers EINVAL is not asked on, and in a session never again. What is not asked has the
problem `not_supported`.
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
#: What is judged (net_counters), and no more: each read is a command to the card.
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
#: The most records of the kernel's log that are searched.
_MOST_RECORDS: Final = 100_000


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the readings of each port."""
    yield from Ports().read(ask)


def session() -> Ports:
    """Return what remembers which devices are not to be asked."""
    return Ports()


class Ports:
    """Reads ports, and remembers the devices whose reading makes the kernel complain."""

    def __init__(self) -> None:
        self._quiet: set[str] = set()
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
            self._quiet |= _complained(ask.at(kmsg.KMSG))
        verbs = Path(ask.at("/sys/class/infiniband_verbs"))
        served = sorted(filter(None, (system_files.text(one / "ibdev") for one in _entries(verbs))))
        yield Reading(NAME, HOST, "port.verbs", [*served])
        options = ask.options.get(NAME)
        excluded = options.get("exclude") if isinstance(options, dict) else None
        for name in devices:
            for port in _entries(root / name / "ports"):
                subject, pci = f"port:{name}/{port.name}", _target(root / name / "device")
                if _refused(port / "rate", ask=not (isinstance(excluded, list) and name in excluded) and pci not in self._quiet):
                    self._quiet.add(pci)
                    for one in ("port.state", "port.counters"):
                        yield Reading(NAME, subject, one, None, NOT_SUPPORTED)
                    continue
                yield Reading(NAME, subject, "port.state", {**_state(root / name, port)})
                yield self._counters(subject, port, pci)

    def close(self) -> None:
        """Nothing is open."""

    def _counters(self, subject: str, port: Path, pci: str) -> Reading:
        found: dict[str, Json] = {}
        for directory in ("counters", "hw_counters"):
            for file in _entries(port / directory):
                if file.name not in COUNTERS:
                    continue
                try:
                    words = file.read_text("ascii", "replace").strip()
                except OSError as error:
                    if error.errno == errno.EINVAL:
                        self._quiet.add(pci)
                        return Reading(NAME, subject, "port.counters", None, NOT_SUPPORTED)
                    continue
                if words.isdecimal():  # "N/A (no PMA)" is none
                    found[file.name] = int(words)
        return Reading(NAME, subject, "port.counters", found or None, "" if found else NOT_SUPPORTED)


def _refused(rate: Path, *, ask: bool) -> bool:
    """Tell whether a port is not to be read: not to be asked, or the first thing that is asked of it (a command to the card) is EINVAL."""
    if not ask:
        return True
    try:
        rate.read_bytes()
    except OSError as error:
        return error.errno == errno.EINVAL
    return False


def _state(device: Path, port: Path) -> dict[str, Json]:
    netdev = system_files.text(port / "gid_attrs/ndevs/0") or next((one.name for one in _entries(device / "device/net")), "")
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
    except OSError:  # not ours to read: the first EINVAL shows it
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
