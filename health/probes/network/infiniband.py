"""InfiniBand, RoCE and EFA ports: state, rate, counters, carrier, GIDs.

Reads them as health.probes.infiniband does, which also says which devices it leaves alone; ask.options["infiniband"]["exclude"] lists
more. Readings of `port:DEVICE/NUMBER`: `port.state` (state and phys_state as words, rate_gb_s, link_layer, driver, device, pci, numa_node,
netdev; carrier, mtu and carrier_changes of the netdev, None if unknown), `port.gids` (of a RoCE port whose table can be read: a list of
tables index, gid, type, ipv4) and `port.counters` (name → count, for the names of COUNTERS that the port has). Readings of `host`:
`port.devices` (names of all devices) and `port.verbs` (names of the devices that programs may open). The readings of a skipped device have
the problem `not_supported`.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import HOST, NOT_SUPPORTED, Json, Reading
from health.probes import infiniband, system_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "infiniband"
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


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the readings of each port."""
    yield from Ports().read(ask)


def session() -> Ports:
    """Return a reader that remembers the devices to skip."""
    return Ports()


class Ports:
    """Reads ports, and remembers the devices whose reading makes the kernel complain."""

    def __init__(self) -> None:
        self._reader = infiniband.PortReader()

    def read(self, ask: Ask) -> Iterator[Reading]:
        """Yield the readings of each port."""
        self._reader.root = Path(ask.root)
        try:
            devices = self._reader.devices()
        except OSError as error:
            yield system_files.unread(NAME, HOST, "port.devices", error, ask.at("/sys/class/infiniband"))
            return
        yield Reading(NAME, HOST, "port.devices", [*devices])
        verbs = Path(ask.at("/sys/class/infiniband_verbs"))
        served = sorted(filter(None, (system_files.text(path / "ibdev") for path in infiniband.entries(verbs))))
        yield Reading(NAME, HOST, "port.verbs", [*served])
        options = ask.options.get(NAME)
        excluded = options.get("exclude") if isinstance(options, dict) else None
        for port in self._reader.ports([str(name) for name in excluded] if isinstance(excluded, list) else ()):
            subject = f"port:{port.device}/{port.number}"
            if not port.is_read:
                for name in ("port.state", "port.counters"):
                    yield Reading(NAME, subject, name, None, NOT_SUPPORTED)
                continue
            yield Reading(NAME, subject, "port.state", _state(port))
            if port.is_roce and port.gids:
                gids: list[Json] = [{"index": gid.index, "gid": gid.gid, "type": gid.type, "ipv4": gid.ipv4} for gid in port.gids]
                yield Reading(NAME, subject, "port.gids", gids)
            yield self._counters(subject, port)

    def close(self) -> None:
        """Nothing is open."""

    def _counters(self, subject: str, port: infiniband.Port) -> Reading:
        counts: dict[str, Json] = {}
        for directory in ("counters", "hw_counters"):
            for file in infiniband.entries(self._reader.path(port) / directory):
                if file.name not in COUNTERS:
                    continue
                try:
                    words = file.read_text("ascii", "replace").strip()
                except OSError as error:
                    if error.errno == errno.EINVAL:
                        self._reader.leave(port)
                        return Reading(NAME, subject, "port.counters", None, NOT_SUPPORTED)
                    continue
                if words.isdecimal():  # "N/A (no PMA)" is not a number
                    counts[file.name] = int(words)
        return Reading(NAME, subject, "port.counters", counts or None, "" if counts else NOT_SUPPORTED)


def _state(port: infiniband.Port) -> dict[str, Json]:
    return {
        "state": port.state,
        "phys_state": port.phys_state,
        "rate_gb_s": port.rate_gb_s,
        "link_layer": port.link_layer,
        "driver": port.driver,
        "device": port.device,
        "pci": port.pci,
        "numa_node": port.numa_node,
        "netdev": port.netdev,
        "carrier": port.carrier,
        "carrier_changes": port.carrier_changes,
        "mtu": port.mtu,
    }
