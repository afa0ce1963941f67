"""Network interfaces: carrier, speed, MTU, errors, addresses.

Reads them as health.probes.nics does. Yields, of `nic:NAME`: `nic.state` (operstate, carrier: None where it is switched off, speed_mb_s,
mtu, carrier_changes, up, loopback, virtual, bond: of which it is a member, ipv4), `nic.counters` (bytes, packets, errors, drops of both
directions, and others of the kernel's); of `host`: `nic.names`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import HOST, Json, Reading
from health.probes import nics, system_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "ethernet"


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the readings of each interface."""
    try:
        every = nics.nics(Path(ask.root))
    except OSError as error:
        yield system_files.unread(NAME, HOST, "nic.names", error, ask.at("/sys/class/net"))
        return
    yield Reading(NAME, HOST, "nic.names", [nic.name for nic in every])
    for nic in every:
        yield Reading(NAME, f"nic:{nic.name}", "nic.state", _state(nic))
        yield Reading(NAME, f"nic:{nic.name}", "nic.counters", {**nic.counters})


def _state(nic: nics.Nic) -> dict[str, Json]:
    return {
        "operstate": nic.operstate,
        "carrier": nic.carrier,
        "speed_mb_s": nic.speed_mb_s,
        "mtu": nic.mtu,
        "carrier_changes": nic.carrier_changes,
        "up": nic.is_up,
        "loopback": nic.is_loopback,
        "virtual": nic.is_virtual,
        "bond": nic.bond,
        "ipv4": nic.ipv4,
    }
