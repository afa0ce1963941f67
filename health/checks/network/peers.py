"""Checks of host names, of other nodes, and of the ports that the job listens on."""

from __future__ import annotations

from shlex import quote
from statistics import median
from typing import TYPE_CHECKING

from health.checks import common
from health.model import HOST, CheckResult, Repair, Result, check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds


@check(
    "net_names",
    subject="name",
    needs=("names", "ethernet"),
    reads="this host's name, the rendezvous host's",
    degraded="longer than 1 s; of several nodes: our own name is resolved to ourselves only, or to an address that no interface has",
    failed="another node's is not resolved",
)
def net_names(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Are this host's name and those of the job's other nodes resolved, and quickly? A rendezvous begins with it."""
    rows = {reading.subject: now.table("name.resolved", reading.subject) for reading in now.of("name.resolved")}
    addresses = {str(address) for reading in now.of("nic.state") for address in _listed(now.table("nic.state", reading.subject))}
    alone = len(rows) == 1
    for subject, row in rows.items():
        several_nodes = not alone or row.get("several_nodes") is True
        wrong = _unreachable_name(subject, row, addresses) if several_nodes and row.get("own") is True else None
        yield wrong or _resolution(now, subject, row, limits, alone=alone)


def _listed(row: dict[str, Json]) -> list[Json]:
    addresses = row.get("addresses")
    return addresses if isinstance(addresses, list) else []


def _unreachable_name(subject: str, row: dict[str, Json], own_addresses: set[str]) -> CheckResult | None:
    """Return the result for our own name where others of the job do not find us by it, None where nothing speaks for that.

    torchrun hands on the name (pytorch#150532: `socket.getfqdn()` becomes MASTER_ADDR); gloo listens on its resolved address, else on
    loopback (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, createDefaultDevice).
    """
    evidence = tuple(map(str, _listed(row)))
    name = subject.removeprefix("name:")
    if evidence and all(address.startswith("127.") or address == "::1" for address in evidence):
        where = "to itself only"
    elif evidence and own_addresses and not own_addresses.intersection(address.partition("%")[0] for address in evidence):
        where = "to an address that no interface here has"
    else:
        return None
    why = f"this host's own name, {name}, is resolved {where}: others do not find this node by it, and gloo listens on loopback"
    command = f"give {name} the address of its interface in /etc/hosts; or torchrun --local-addr ADDRESS, and GLOO_SOCKET_IFNAME=INTERFACE"
    look = ("cat /etc/hosts", f"getent ahosts {quote(name)}")
    return CheckResult("net_names", subject, Result.DEGRADED, why, evidence, Repair.CONFIGURE, command, look=look)


def _resolution(now: Readings, subject: str, row: dict[str, Json], limits: Thresholds, *, alone: bool) -> CheckResult:
    name, problem = subject.removeprefix("name:"), now.problem("name.resolved", subject)
    look = (f"getent hosts {quote(name)}", "cat /etc/resolv.conf")
    if problem:
        # its own name matters where others are to find this node by it; alone, torchrun is given localhost
        result = Result.DEGRADED if alone else Result.FAILED
        return CheckResult("net_names", subject, result, f"{name} is not resolved: {problem}", (), Repair.CONFIGURE, look=look)
    evidence, seconds = tuple(map(str, _listed(row))), common.number(row, "seconds") or 0.0
    if seconds > limits.resolve_s:
        why = f"{name} took {seconds:.1f} s to be resolved: a name server does not answer"
        return CheckResult("net_names", subject, Result.DEGRADED, why, evidence, Repair.CONFIGURE, look=look)
    return CheckResult("net_names", subject, Result.OK, f"{name} is resolved in {seconds:.3f} s", evidence)


#: A node that is this much slower than the others is reported, if the difference is above noise.
_SLOWER_TIMES, _SLOWER_LEAST_S = 10.0, 0.01


@check(
    "net_reach",
    subject="peer",
    needs=("reach",),
    reads="a connection to the rendezvous host, on another node",
    degraded="slower than 100 ms, or than ten times the others",
    failed="no answer",
)
def net_reach(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Do the job's other nodes answer, and how quickly? One that refuses a connection is there; one that is silent is cut off."""
    peers = now.of("peer.answer")
    if not peers:
        yield CheckResult("net_reach", HOST, Result.SKIPPED, "no other node is known")
        return
    times = {reading.subject: common.number(now.table("peer.answer", reading.subject), "seconds") for reading in peers}
    usual = median([seconds for seconds in times.values() if seconds is not None] or [0.0])
    for reading in peers:
        name, seconds = reading.subject.removeprefix("peer:"), times[reading.subject]
        host, _, port = name.rpartition(":")
        look = (f"nc -vz -w 3 {quote(host)} {quote(port)}", f"ip route get {quote(host)}")
        if seconds is None:
            words = "no answer: a firewall, or it is down" if reading.problem == "timeout" else reading.problem
            why = f"{name} cannot be reached: {words}"
            yield CheckResult("net_reach", reading.subject, Result.FAILED, why, (), Repair.CONFIGURE, look=look)
            continue
        evidence = (f"{seconds * 1000:.2f} ms", f"median of all {usual * 1000:.2f} ms")
        if seconds > limits.connect_s or (seconds > _SLOWER_TIMES * usual and seconds > _SLOWER_LEAST_S):
            why = f"{name} takes {seconds * 1000:.0f} ms to answer"
            yield CheckResult("net_reach", reading.subject, Result.DEGRADED, why, evidence, look=(f"mtr -rwc 10 {quote(host)}",))
        else:
            yield CheckResult("net_reach", reading.subject, Result.OK, f"{name} answers in {seconds * 1000:.2f} ms", evidence)


@check(
    "net_ports",
    subject="listen",
    needs=("ports",),
    reads="the port that the rendezvous will listen on here. Held by a job that runs here, and none is asked for: unknown",
    failed="taken: by whom is named; not permitted",
)
def net_ports(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Are the ports that the job will listen on free? The holder of a taken one is named."""
    states = now.of("listen.state")
    if not states:
        yield CheckResult("net_ports", HOST, Result.SKIPPED, "no port is known that the job will listen on")
    for reading in states:
        port, row, rows = (
            reading.subject.removeprefix("listen:"),
            now.table("listen.state", reading.subject),
            _holders(now, reading.subject),
        )
        if row.get("free") is True:
            yield CheckResult("net_ports", reading.subject, Result.OK, f"port {port} is free")
            continue
        if row.get("error") != "EADDRINUSE":
            why = f"port {port} cannot be had: {row.get('error')}"
            yield CheckResult("net_ports", reading.subject, Result.FAILED, why, (), Repair.CONFIGURE, "choose another port, above 1024")
            continue
        holders = ", ".join(map(_holder_text, rows)) or "nobody that can be seen from here"
        if rows and all(row.get("ours") is True for row in rows):
            yield CheckResult("net_ports", reading.subject, Result.OK, f"port {port} is held by this job", (holders,))
            continue
        if any(row.get("may_be_ours") is True for row in rows):
            why = f"port {port} is held by a job that runs here, this one or another: {holders}"
            yield CheckResult("net_ports", reading.subject, Result.UNKNOWN, why, look=(f"ss -tanp sport = :{quote(port)}",))
            continue
        why = f"port {port} is taken: {holders}"
        yield CheckResult(
            "net_ports", reading.subject, Result.FAILED, why, (), Repair.CONFIGURE, look=(f"ss -tanp sport = :{quote(port)}",)
        )


def _holders(now: Readings, subject: str) -> list[dict[str, Json]]:
    rows = now.table("listen.state", subject).get("holders")
    results = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    # where somebody listens, it is he: connections that he took, or that are not quite closed, have the same port
    return [row for row in results if row.get("state") == "listening"] or results


def _holder_text(row: dict[str, Json]) -> str:
    if row.get("pid") is None:
        return f"a process of user {row.get('user')} that cannot be seen ({row.get('state')})"
    return f"process {row.get('pid')} ({row.get('command')}, {row.get('state')})"
