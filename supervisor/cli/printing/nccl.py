"""`supervise print nccl`: what NCCL does not find well by itself on this node, as NAME=value (docs/guides/clusters.md).

The form is the one that NCCL itself reads (NCCL_CONF_FILE, /etc/nccl.conf), and systemd's EnvironmentFile=, and a shell with `set -a`: a
name, a value that needs no quotes, comments on lines of their own. How NCCL chooses: src/misc/socket.cc, src/transport/net_ib/ of 2.21 to
2.31, and its user guide, "Environment Variables".
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click

from health.checks.environment import misleading
from health.nvidia.gids import nccl_choices
from supervisor.cli.invocation import Invocation, setting_options
from supervisor.cli.printing.node_facts import NodeFacts, print_for_this_node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from health.probes.infiniband import Port
    from health.probes.nics import Nic

#: NCCL takes interfaces with such names only where there is no other, those with the first only where it is there.
_FIRST, _LAST = "ib", ("docker", "lo", "virbr")
_GIGABIT: Final = 1000


@click.command()
@setting_options()
def print_command(_invocation: Invocation) -> int:
    """A line is there only where NCCL would choose badly here. `set -a; . ./nccl.env; set +a` loads it; so does NCCL_CONF_FILE."""
    return print_for_this_node(lambda facts: variables(facts, os.environ))


def variables(facts: NodeFacts, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the file. environ: of the caller: a variable that does nothing is named."""
    yield f"# NCCL on {facts.title()}"
    yield "# For nodes like this one. What NCCL finds well by itself is not set: a line too many outlives its reason."
    if facts.nvlinks:
        yield f"# NVLink: {facts.nvlinks} links are up on each GPU. NCCL finds them."
    elif facts.nvlinks == 0 and facts.gpus > 1:
        yield "# No NVLink is up: GPUs reach each other by way of PCIe. NCCL finds the way."
    ports = [port for port in facts.ports if port.is_active and (port.is_roce or port.link_layer == "InfiniBand")]
    yield from _cards(facts, ports)
    yield from _sockets([nic for nic in facts.nics if _is_usable(nic)])
    for name, words, command in misleading(environ):
        yield f"# {name}, which is set in this shell, {words}: {command}".replace("\n", " ")


def _cards(facts: NodeFacts, ports: Sequence[Port]) -> Iterator[str]:
    """Yield the settings of InfiniBand and RoCE."""
    if not ports:
        if any(port.driver == "efa" for port in facts.ports):
            yield "# EFA: a plugin of NCCL (aws-ofi-nccl) drives it, and chooses by itself."
        else:
            yield "# No active InfiniBand or RoCE port is visible here: nodes exchange data by sockets."
        return
    kinds = {_kind(port): [other for other in ports if _kind(other) == _kind(port)] for port in ports}
    kind, chosen = max(kinds.items(), key=lambda item: (sum(port.rate_gb_s or 0.0 for port in item[1]), not item[1][0].is_roce))
    names = ",".join(_name(port) for port in chosen)
    others = ", ".join(f"{_name(port)} ({_kind(port)})" for port in ports if port not in chosen)
    if others:
        yield f"# {names}: {kind}, the most together. NCCL would send over {others} as well. = in front: exact names."
        yield f"NCCL_IB_HCA=={names}"
    else:
        yield f"# {names}: {kind}. NCCL takes all of them: no NCCL_IB_HCA."
    yield from _gids([port for port in chosen if port.is_roce])


def _gids(ports: Sequence[Port]) -> Iterator[str]:
    """Yield the settings for the GIDs of RoCE: NCCL looks for RoCE v2 of an IPv4 address, and for those of IPv6 by a variable."""
    if not ports or any(not port.gids or not all(gid.type for gid in port.gids) for port in ports):
        return  # a table, or a type in it, could not be read
    for is_ipv4 in (True, False):
        of_ports = [nccl_choices(port.gids, is_ipv4=is_ipv4) for port in ports]
        if all(of_ports):
            indices = " and ".join(map(str, sorted({gids[0].index for gids in of_ports})))
            if is_ipv4:
                yield f"# RoCE v2 at GID index {indices}: NCCL 2.21 and later takes it by itself: no NCCL_IB_GID_INDEX."
            else:
                yield f"# RoCE v2 of an IPv6 address, at GID index {indices}: NCCL 2.21 and later finds it by the address family."
                yield "NCCL_IB_ADDR_FAMILY=AF_INET6"
            return
    names = ", ".join(_name(port) for port in ports if not nccl_choices(port.gids, is_ipv4=True))
    yield f"# {names}: no RoCE v2 GID of an address: NCCL takes one that no router passes on. `supervise doctor` says what helps."


def _name(port: Port) -> str:
    return f"{port.device}:{port.number}"


def _kind(port: Port) -> str:
    rate = f"{port.rate_gb_s:g} Gb/s " if port.rate_gb_s is not None else ""
    return rate + ("RoCE" if port.is_roce else "InfiniBand")


def _is_usable(nic: Nic) -> bool:
    """Return whether NCCL can meet others over an interface: it is on, linked, and has an address that is more than its link's."""
    return nic.is_up and not nic.is_loopback and nic.carrier is not False and any(not word.startswith("fe80:") for word in nic.addresses)


def _sockets(usable: Sequence[Nic]) -> Iterator[str]:
    """Yield which interfaces are for sockets: ranks meet over them, and exchange data where there is no InfiniBand or RoCE."""
    first = [nic for nic in usable if nic.name.startswith(_FIRST)]
    taken = first or [nic for nic in usable if not nic.name.startswith(_LAST)]
    real = [nic for nic in taken if not nic.is_virtual or nic.is_bond or nic.is_default_route]
    fastest = max((nic.speed_mb_s or 0 for nic in real), default=0)
    chosen = [nic for nic in real if (nic.speed_mb_s or 0) == fastest]
    others = [nic for nic in taken if nic not in chosen]
    names = ",".join(nic.name for nic in chosen)
    if not chosen:
        yield "# No interface with an address is visible here: which one ranks meet over is left to NCCL."
    elif others:
        words = ", ".join(f"{nic.name} ({_speed(nic)})" for nic in others)
        yield f"# {names}: {_speed(chosen[0])}. NCCL would take {words} as well. = in front: exact names."
        yield f"NCCL_SOCKET_IFNAME=={names}"
    else:
        yield f"# Sockets: NCCL takes {names} ({_speed(chosen[0])}): no NCCL_SOCKET_IFNAME."


def _speed(nic: Nic) -> str:
    if nic.speed_mb_s is not None:
        return f"{nic.speed_mb_s / _GIGABIT:g} Gb/s"
    return "virtual" if nic.is_virtual else "speed unknown"
