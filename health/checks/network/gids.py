"""Checks of the addresses (GIDs) by which RoCE ports find each other."""

from __future__ import annotations

import ipaddress
from shlex import quote
from typing import TYPE_CHECKING

from health.checks import common
from health.checks.network.ethernet import names_chosen
from health.model import HOST, CheckResult, Repair, Result, check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

_V2 = "RoCE v2"


@check(
    "net_gids",
    subject="port",
    needs=("infiniband", "environment"),
    reads="GIDs of the RoCE ports that NCCL may use, `NCCL_IB_GID_INDEX`, `NCCL_IB_ADDR_FAMILY`",
    degraded="none of RoCE v2; of RoCE v2 none of an IPv4 address; `NCCL_IB_GID_INDEX` names none that the port has",
)
def net_gids(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Has each active RoCE port a GID that other nodes reach? NCCL takes RoCE v2 with an IPv4 address, else the first: link-local, v1.

    NCCL's documentation: NCCL_IB_GID_INDEX, NCCL_IB_ADDR_FAMILY (AF_INET), NCCL_IB_ROCE_VERSION_NUM (2). A maintainer on what a link-local
    one does: it "isn't properly routed and fails", `ibv_modify_qp failed with error Connection timed out` (nccl#769).
    """
    variables = now.table("env.variables")
    ports = {reading.subject: now.table("port.state", reading.subject) for reading in now.of("port.gids")}
    named = str(variables.get("NCCL_IB_HCA") or "")
    if variables.get("NCCL_IB_DISABLE") == "1":
        ports = {}
    elif named:
        chosen = names_chosen(named, [str(row.get("device")) for row in ports.values()], exact=False)
        ports = {subject: row for subject, row in ports.items() if row.get("device") in chosen}
    elif any(row.get("link_layer") == "InfiniBand" and row.get("state") == "ACTIVE" for row in _every_port(now)):
        ports = {}  # NCCL goes by InfiniBand: these are for storage
    ports = {subject: row for subject, row in ports.items() if row.get("state") == "ACTIVE" and row.get("carrier") is not False}
    if not ports:
        yield CheckResult("net_gids", HOST, Result.SKIPPED, "no RoCE port that NCCL would use shows GIDs here")
    for subject, row in ports.items():
        yield _judged(subject, row, now.rows("port.gids", subject), variables)


def _every_port(now: Readings) -> list[dict[str, Json]]:
    return [now.table("port.state", reading.subject) for reading in now.of("port.state")]


def _judged(subject: str, row: dict[str, Json], gids: list[dict[str, Json]], variables: dict[str, Json]) -> CheckResult:
    port, netdev = f"RoCE port {subject.removeprefix('port:')}", str(row.get("netdev") or "INTERFACE")
    evidence = tuple(f"{gid.get('index')}: {gid.get('ipv4') or gid.get('gid')} {gid.get('type') or 'of unknown type'}" for gid in gids)
    index = str(variables.get("NCCL_IB_GID_INDEX") or "").strip()
    if not index.isdecimal() and any(not gid.get("type") for gid in gids):  # -1: chosen by NCCL
        return CheckResult("net_gids", subject, Result.SKIPPED, f"{port}: the types of its GIDs are not visible here", evidence)
    family = "IPv6" if variables.get("NCCL_IB_ADDR_FAMILY") == "AF_INET6" else "IPv4"
    fault = _fault_of_index(index, gids, family) if index.isdecimal() else _fault(gids, family, netdev)
    if fault is None:
        usable = index if index.isdecimal() else _usable(gids, family)[0].get("index")
        return CheckResult("net_gids", subject, Result.OK, f"{port} has GID {usable}", evidence)
    look = (f"ip address show {quote(netdev)}", f"ls /sys/class/infiniband/{quote(str(row.get('device')))}/ports/*/gid_attrs/types")
    why, remedy = fault
    return CheckResult("net_gids", subject, Result.DEGRADED, f"{port}: {why}", evidence, Repair.CONFIGURE, remedy, look=look)


def _fault_of_index(index: str, gids: list[dict[str, Json]], family: str) -> tuple[str, str] | None:
    """Return what is wrong and what repairs it, None where the port has the GID that the variable names."""
    if any(common.number(gid, "index") == int(index) for gid in gids):
        return None
    usable = _usable(gids, family)
    other = f", or set it to {usable[0].get('index')}" if usable else ""
    return f"it has no GID {index}, which NCCL_IB_GID_INDEX names", f"unset NCCL_IB_GID_INDEX (NCCL 2.21 and later choose one){other}"


def _fault(gids: list[dict[str, Json]], family: str, netdev: str) -> tuple[str, str] | None:
    """Return what is wrong and what repairs it, None where NCCL finds a GID."""
    if _usable(gids, family):
        return None
    if not any(gid.get("type") == _V2 for gid in gids):
        why = "it has GIDs of RoCE v1 only, which no router passes on, and NCCL looks for RoCE v2"
        return why, "update the card's firmware and driver; until then: export NCCL_IB_DISABLE=1 (sockets)"
    other_family, variable = ("IPv4", "AF_INET") if family == "IPv6" else ("IPv6", "AF_INET6")
    if _usable(gids, other_family):
        why = f"no GID of RoCE v2 is of an {family} address: NCCL takes GID 0, which others may not reach"
        return why, f"export NCCL_IB_ADDR_FAMILY={variable} on all nodes"
    why = f"its GIDs of RoCE v2 are link-local, because {netdev} has no address: NCCL takes GID 0, which no router passes on"
    return why, f"ip address add ADDRESS/PREFIX dev {quote(netdev)}"


def is_chosen(kind: str, gid: str, *, is_ipv4: bool) -> bool:
    """Return whether NCCL 2.21 and later choose a GID for addresses of one family: it is of RoCE v2, and routers pass it on."""
    address = ipaddress.IPv6Address(gid)
    return kind == _V2 and not address.is_link_local and (address.ipv4_mapped is not None) == is_ipv4


def _usable(gids: list[dict[str, Json]], family: str) -> list[dict[str, Json]]:
    return [gid for gid in gids if is_chosen(str(gid.get("type")), str(gid.get("gid")), is_ipv4=family == "IPv4")]
