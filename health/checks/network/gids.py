"""Checks of the addresses (GIDs) by which RoCE ports find each other."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from health.checks.network.ethernet import names_chosen
from health.model import HOST, CheckResult, Repair, Result, check
from health.nvidia.gids import ROCE_V2, Gid, nccl_choices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds


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
        yield _judged(subject, row, [_gid(gid) for gid in now.rows("port.gids", subject)], variables)


def _gid(row: dict[str, Json]) -> Gid:
    return Gid(int(str(row["index"])), str(row["gid"]), str(row["type"]))


def _every_port(now: Readings) -> list[dict[str, Json]]:
    return [now.table("port.state", reading.subject) for reading in now.of("port.state")]


def _judged(subject: str, row: dict[str, Json], gids: list[Gid], variables: dict[str, Json]) -> CheckResult:
    port, netdev = f"RoCE port {subject.removeprefix('port:')}", str(row.get("netdev") or "INTERFACE")
    evidence = tuple(f"{gid.index}: {gid.ipv4 or gid.gid} {gid.type or 'of unknown type'}" for gid in gids)
    index = str(variables.get("NCCL_IB_GID_INDEX") or "").strip()
    if not index.isdecimal() and any(not gid.type for gid in gids):  # -1: chosen by NCCL
        return CheckResult("net_gids", subject, Result.SKIPPED, f"{port}: the types of its GIDs are not visible here", evidence)
    family = "IPv6" if variables.get("NCCL_IB_ADDR_FAMILY") == "AF_INET6" else "IPv4"
    fault = _fault_of_index(index, gids, family) if index.isdecimal() else _fault(gids, family, netdev)
    if fault is None:
        usable = index if index.isdecimal() else _usable(gids, family)[0].index
        return CheckResult("net_gids", subject, Result.OK, f"{port} has GID {usable}", evidence)
    look = (f"ip address show {quote(netdev)}", f"ls /sys/class/infiniband/{quote(str(row.get('device')))}/ports/*/gid_attrs/types")
    why, remedy = fault
    return CheckResult("net_gids", subject, Result.DEGRADED, f"{port}: {why}", evidence, Repair.CONFIGURE, remedy, look=look)


def _fault_of_index(index: str, gids: list[Gid], family: str) -> tuple[str, str] | None:
    """Return the fault and its repair, None where the port has the GID that the variable names."""
    if any(gid.index == int(index) for gid in gids):
        return None
    usable = _usable(gids, family)
    other = f", or set it to {usable[0].index}" if usable else ""
    return f"it has no GID {index}, which NCCL_IB_GID_INDEX names", f"unset NCCL_IB_GID_INDEX (NCCL 2.21 and later choose one){other}"


def _fault(gids: list[Gid], family: str, netdev: str) -> tuple[str, str] | None:
    """Return the fault and its repair, None where NCCL finds a GID."""
    if _usable(gids, family):
        return None
    if not any(gid.type == ROCE_V2 for gid in gids):
        why = "it has GIDs of RoCE v1 only, which no router passes on, and NCCL looks for RoCE v2"
        return why, "update the card's firmware and driver; until then: export NCCL_IB_DISABLE=1 (sockets)"
    other_family, variable = ("IPv4", "AF_INET") if family == "IPv6" else ("IPv6", "AF_INET6")
    if _usable(gids, other_family):
        why = f"no GID of RoCE v2 is of an {family} address: NCCL takes GID 0, which others may not reach"
        return why, f"export NCCL_IB_ADDR_FAMILY={variable} on all nodes"
    why = f"its GIDs of RoCE v2 are link-local, because {netdev} has no address: NCCL takes GID 0, which no router passes on"
    return why, f"ip address add ADDRESS/PREFIX dev {quote(netdev)}"


def _usable(gids: list[Gid], family: str) -> list[Gid]:
    return nccl_choices(gids, is_ipv4=family == "IPv4")
