"""Network interfaces: carrier, speed, MTU, errors, addresses; and how large the kernel lets TCP's buffers become.

Reads them as health.probes.nics does. Yields, of `nic:NAME`: `nic.state` (operstate, carrier: None where it is switched off, speed_mb_s,
mtu, carrier_changes, up, loopback, virtual, bond: of which it is a member, ipv4, addresses), `nic.counters` (bytes, packets, errors, drops
of both directions, and others of the kernel's); of `host`: `nic.names`, `tcp.buffers` (bytes: receive_most, send_most, as autotuning may
choose; receive_by_program, send_by_program, as a program may ask for; scaling: whether windows may be larger than 64 KiB; what a container
does not see is missing).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import HOST, NOT_SUPPORTED, Json, Reading
from health.probes import nics, system_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "ethernet"
_SYSCTLS: Final = "/proc/sys/net"
#: The last number of each is the most: `min default max`, or one alone.
_MOST: Final = {
    "receive_most": "ipv4/tcp_rmem",
    "send_most": "ipv4/tcp_wmem",
    "receive_by_program": "core/rmem_max",
    "send_by_program": "core/wmem_max",
}


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
    yield _buffers(Path(ask.at(_SYSCTLS)))


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
        "addresses": [*nic.addresses],
    }


def _buffers(folder: Path) -> Reading:
    values: dict[str, Json] = {}
    for name, file in _MOST.items():
        words = system_files.text(folder / file).split()
        if words and words[-1].isdecimal():
            values[name] = int(words[-1])
    scaling = system_files.whole(folder / "ipv4/tcp_window_scaling")
    if scaling is not None:
        values["scaling"] = bool(scaling)
    return Reading(NAME, HOST, "tcp.buffers", values or None, "" if values else NOT_SUPPORTED)
