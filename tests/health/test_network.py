"""The checks of the network on prepared readings, and the probes on real sockets and on trees like /sys."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from health import registry
from health.checks.network.infiniband import COUNTER_RULES
from health.model import HOST, NOT_SUPPORTED, Ask, CheckResult, Json, Reading, Readings, Repair, Result
from health.probes.network import ethernet, infiniband, names, ports, reach
from health.thresholds import Thresholds
from tests.health.harmless_commands import are_apart
from tests.support.figures import within

if TYPE_CHECKING:
    from collections.abc import Iterator

OK, DEGRADED, FAILED, UNKNOWN, SKIPPED = Result.OK, Result.DEGRADED, Result.FAILED, Result.UNKNOWN, Result.SKIPPED
A, B, C = "port:mlx5_0/1", "port:mlx5_1/1", "port:mlx5_2/1"
ETH = "nic:eth0"
#: Seconds between the baseline and now.
SPAN = 100.0

Values = Mapping[tuple[str, str], Json]


@dataclass(frozen=True, slots=True)
class Row:
    """Readings by subject and name; the expected result for `subject`, and the other subjects with a result."""

    check: str
    read: Values
    subject: str
    result: Result
    words: str
    repair: Repair = Repair.NONE
    before: Values | None = None
    problems: Mapping[tuple[str, str], str] = field(default_factory=dict)


def port(subject: str, state: str = "ACTIVE", rate: float = 400.0, **more: Json) -> dict[tuple[str, str], Json]:
    row: dict[str, Json] = {"state": state, "phys_state": "LinkUp" if state == "ACTIVE" else "Polling", "rate_gb_s": rate}
    row |= {"link_layer": "InfiniBand", "driver": "mlx5_core", "device": subject[5:-2], "pci": "", "netdev": "", "carrier": None}
    return {(subject, "port.state"): {**row, **more}, (HOST, "port.devices"): ["mlx5_0", "mlx5_1", "mlx5_2"]}


def three(third: str = "ACTIVE", rate: float = 400.0, **more: Json) -> dict[tuple[str, str], Json]:
    return {**port(A), **port(B), **port(C, third, rate, **more)}


def counters(**values: Json) -> dict[tuple[str, str], Json]:
    return {(A, "port.counters"): {"link_downed": 5, "symbol_error": 1000, "port_rcv_errors": 0, **values}}


def nic(subject: str = ETH, **more: Json) -> dict[tuple[str, str], Json]:
    row: dict[str, Json] = {"operstate": "up", "carrier": True, "speed_mb_s": 25000, "mtu": 9000, "carrier_changes": 2}
    row |= {"up": True, "loopback": False, "virtual": False, "ipv4": "192.0.2.1"}
    return {(subject, "nic.state"): {**row, **more}, (HOST, "nic.names"): ["eth0", "eth1", "lo"]}


def packets(count: int, errors: int, **more: Json) -> dict[tuple[str, str], Json]:
    return {**nic(), (ETH, "nic.counters"): {"rx_packets": count, "tx_packets": 0, "rx_errors": errors, **more}}


def name(host: str, *addresses: str, seconds: float = 0.001, own: bool = False) -> dict[tuple[str, str], Json]:
    return {(f"name:{host}", "name.resolved"): {"addresses": [*addresses], "seconds": seconds, "own": own}}


def own(*addresses: str, interface: str = "192.0.2.1") -> dict[tuple[str, str], Json]:
    """Return what a node of several reads of its own name, with one interface."""
    row: dict[str, Json] = {"addresses": [*addresses], "seconds": 0.001, "own": True, "several_nodes": True}
    return {("name:n1", "name.resolved"): row, **nic(addresses=[interface] if interface else [])}


def gid(index: int, address: str, kind: str = "RoCE v2", ipv4: str = "") -> dict[str, Json]:
    return {"index": index, "gid": address, "type": kind, "ipv4": ipv4}


V1, V2 = gid(0, "fe80::1", "RoCE v1"), gid(1, "fe80::1")
V2_IPV4, V2_IPV6 = gid(3, "::ffff:10.0.0.1", ipv4="10.0.0.1"), gid(5, "fd00::7")


def roce(*gids: Json, state: str = "ACTIVE", **variables: Json) -> dict[tuple[str, str], Json]:
    ports = port(A, state, link_layer="Ethernet", netdev="eth2")
    return {**ports, (A, "port.gids"): [*gids], (HOST, "env.variables"): {**variables}}


def buffers(speed: Json = 100_000, **more: Json) -> dict[tuple[str, str], Json]:
    row: dict[str, Json] = {"receive_most": 6291456, "send_most": 4194304, "receive_by_program": 212992, "send_by_program": 212992}
    return {**nic(speed_mb_s=speed), (HOST, "tcp.buffers"): {**row, "scaling": True, **more}}


def bond(member: int, mtu: int = 9000) -> dict[tuple[str, str], Json]:
    ports = {**nic(bond="bond0"), **nic("nic:eth1", bond="bond0", mtu=member)}
    return {**ports, **nic("nic:bond0", virtual=True, mtu=mtu), (HOST, "nic.names"): ["bond0", "eth0", "eth1", "lo"]}


def traffic(received: int, sent: int, dropped: int = 0) -> dict[tuple[str, str], Json]:
    return {**nic(), (ETH, "nic.counters"): {"rx_bytes": received, "tx_bytes": sent, "rx_packets": 9, "rx_dropped": dropped}}


def peer(host: str, seconds: float) -> dict[tuple[str, str], Json]:
    return {(f"peer:{host}:29500", "peer.answer"): {"answer": "refused", "seconds": seconds}}


def listen(error: str = "", *holders: Json) -> dict[tuple[str, str], Json]:
    return {("listen:29500", "listen.state"): {"free": not error, "error": error, "holders": [*holders]}}


def holder(*, is_ours: bool = False, may_be: bool = False) -> Json:
    return {"pid": 77, "command": "python", "state": "listening", "user": "0", "ours": is_ours, "may_be_ours": may_be}


CLOSING: Json = {"pid": None, "command": "", "state": "time-wait", "user": "0", "ours": False}


def chosen(variable: str, value: str, **more: Json) -> dict[tuple[str, str], Json]:
    return {**nic(), **nic("nic:eth1", up=False, carrier=None), **three(**more), (HOST, "env.variables"): {variable: value}}


TABLE = [
    Row("net_infiniband", three(), C, OK, "port mlx5_2/1 is up at 400 Gb/s"),
    Row("net_infiniband", three("DOWN"), C, DEGRADED, "is DOWN (Polling), and others are up", Repair.DRAIN),
    Row("net_infiniband", three("DOWN"), C, FAILED, "was up when the job started", Repair.DRAIN, before=three()),
    Row("net_infiniband", port(A, "INIT"), A, DEGRADED, "is INIT (Polling): NCCL will not use it"),
    Row("net_infiniband", three(rate=200.0), C, DEGRADED, "runs at 200 Gb/s, and its siblings at 400", Repair.REPLACE),
    Row("net_infiniband", three(rate=200.0), A, OK, "400 Gb/s"),
    Row("net_infiniband", port(A, rate=100.0), A, DEGRADED, "and at 400 when the job started", Repair.REPLACE, before=port(A)),
    Row("net_infiniband", three(rate=100.0, link_layer="Ethernet"), C, OK, "100 Gb/s"),  # a storage card, of another kind
    Row("net_infiniband", port(A, driver="efa", carrier=False), A, DEGRADED, "has no carrier"),
    Row("net_infiniband", port(A, driver="efa", carrier=False), A, FAILED, "has no carrier, and was up", Repair.DRAIN, before=port(A)),
    Row("net_infiniband", port(A, carrier=True, carrier_changes=9), A, DEGRADED, "7 changes since", Repair.REPLACE,
        before=port(A, carrier=True, carrier_changes=2)),
    Row("net_infiniband", {(HOST, "port.devices"): []}, C, FAILED, "port mlx5_2/1 is gone", Repair.REBOOT, before=port(C)),
    Row("net_infiniband", {**port(A), (HOST, "port.verbs"): ["mlx5_1", "mlx5_2"]}, "port:mlx5_0", DEGRADED, "no device file",
        Repair.CONFIGURE),
    Row("net_infiniband", {(HOST, "port.devices"): []}, HOST, SKIPPED, "no InfiniBand"),
    Row("net_infiniband", {}, HOST, SKIPPED, "not visible here", problems={(HOST, "port.devices"): NOT_SUPPORTED}),
    Row("net_infiniband", port(A), B, SKIPPED, "makes the kernel complain", problems={(B, "port.state"): NOT_SUPPORTED}),
    Row("net_counters", counters(), A, OK, "no errors", before=counters()),
    Row("net_counters", counters(link_downed=6), A, FAILED, "the link went down (1 times", Repair.DRAIN, before=counters()),
    Row("net_counters", counters(symbol_error=1121), A, FAILED, "symbol errors", Repair.DRAIN, before=counters()),
    Row("net_counters", counters(symbol_error=1120), A, OK, "no errors", before=counters()),
    Row("net_counters", counters(port_rcv_errors=1001), A, DEGRADED, "packets arrive broken", Repair.DRAIN, before=counters()),
    Row("net_counters", counters(port_rcv_errors=1000), A, OK, "no errors", before=counters()),
    Row("net_counters", {}, A, SKIPPED, "makes the kernel complain", problems={(A, "port.counters"): NOT_SUPPORTED}),
    Row("net_ethernet", nic(), ETH, OK, "eth0 is up"),
    Row("net_ethernet", nic(carrier=False), ETH, DEGRADED, "switched on and has no carrier"),
    Row("net_ethernet", nic(carrier=None, up=False), ETH, FAILED, "had one when the job started", Repair.DRAIN, before=nic()),
    Row("net_ethernet", nic(carrier_changes=6), ETH, DEGRADED, "4 changes", Repair.REPLACE, before=nic()),
    Row("net_ethernet", nic(speed_mb_s=10000), ETH, DEGRADED, "runs at 10000 Mb/s, and at 25000", Repair.REPLACE, before=nic()),
    Row("net_ethernet", packets(1_000_000, 5000), ETH, DEGRADED, "lost 5000 of 1000000", Repair.DRAIN, before=packets(0, 0)),
    Row("net_ethernet", packets(1_000_000, 90), ETH, OK, "is up", before=packets(0, 0)),
    Row("net_ethernet", packets(200, 0, rx_dropped=900), ETH, OK, "is up", before=packets(0, 0)),  # a switch's LLDP
    Row("net_ethernet", packets(200, 0, rx_missed_errors=900), ETH, DEGRADED, "lost 900", Repair.DRAIN, before=packets(0, 0)),
    Row("net_ethernet", nic(virtual=True), HOST, SKIPPED, "a container, perhaps"),
    Row("net_ethernet", {}, HOST, UNKNOWN, "not read"),
    Row("net_mtu", {**nic(), **nic("nic:eth1")}, HOST, OK, "have one MTU"),
    Row("net_mtu", {**nic(), **nic("nic:eth1"), **nic("nic:eth2", mtu=1500)}, HOST, DEGRADED, "eth2: another MTU", Repair.CONFIGURE),
    Row("net_mtu", {**nic(), **nic("nic:eth1", mtu=1500, speed_mb_s=1000)}, HOST, OK, "have one MTU"),
    Row("net_mtu", {**nic(mtu=4092, speed_mb_s=None), **nic("nic:eth1", mtu=1500, speed_mb_s=None)}, HOST, OK, "have one MTU"),
    Row("net_mtu", nic(virtual=True), HOST, SKIPPED, "is up"),
    Row("net_mtu", bond(9000), HOST, OK, "have one MTU"),
    Row("net_mtu", bond(1500), HOST, DEGRADED, "eth1: another MTU than the bond bond0 (9000)", Repair.CONFIGURE),
    Row("net_mtu", bond(9000, mtu=1500), HOST, DEGRADED, "eth0, eth1: another MTU than the bond bond0 (1500)", Repair.CONFIGURE),
    Row("net_gids", roce(V1, V2, V2_IPV4), A, OK, "has GID 3"),
    Row("net_gids", roce(V1), A, DEGRADED, "RoCE v1 only", Repair.CONFIGURE),
    Row("net_gids", roce(V1, V2), A, DEGRADED, "link-local, because eth2 has no address", Repair.CONFIGURE),
    Row("net_gids", roce(V1, V2, V2_IPV6), A, DEGRADED, "no GID of RoCE v2 is of an IPv4 address", Repair.CONFIGURE),
    Row("net_gids", roce(V1, V2, V2_IPV6, NCCL_IB_ADDR_FAMILY="AF_INET6"), A, OK, "has GID 5"),
    Row("net_gids", roce(V1, V2, V2_IPV4, NCCL_IB_ADDR_FAMILY="AF_INET6"), A, DEGRADED, "of an IPv6 address", Repair.CONFIGURE),
    Row("net_gids", roce(V1, V2, V2_IPV4, NCCL_IB_GID_INDEX="3"), A, OK, "has GID 3"),
    Row("net_gids", roce(V1, V2, V2_IPV4, NCCL_IB_GID_INDEX="7"), A, DEGRADED, "it has no GID 7", Repair.CONFIGURE),
    Row("net_gids", roce(V1, V2, V2_IPV4, NCCL_IB_GID_INDEX="-1"), A, OK, "has GID 3"),
    Row("net_gids", roce({**V1, "type": ""}), A, SKIPPED, "the types of its GIDs are not visible here"),
    Row("net_gids", roce(V1, state="DOWN"), HOST, SKIPPED, "no RoCE port"),
    Row("net_gids", roce(V1, NCCL_IB_DISABLE="1"), HOST, SKIPPED, "no RoCE port"),
    Row("net_gids", {**roce(V1), **port(B)}, HOST, SKIPPED, "no RoCE port"),  # NCCL goes by InfiniBand
    Row("net_gids", {**roce(V1, NCCL_IB_HCA="mlx5_0"), **port(B)}, A, DEGRADED, "RoCE v1 only", Repair.CONFIGURE),
    Row("net_gids", {**roce(V1, NCCL_IB_HCA="^mlx5_0")}, HOST, SKIPPED, "no RoCE port"),
    Row("net_buffers", buffers(), HOST, OK, "suffice for the 100 Gb/s of eth0"),
    Row("net_buffers", buffers(receive_most=262144), HOST, DEGRADED, "no larger than 256 KiB (net.ipv4.tcp_rmem)", Repair.CONFIGURE),
    Row("net_buffers", buffers(send_most=4194303), HOST, DEGRADED, "(net.ipv4.tcp_wmem)", Repair.CONFIGURE),
    Row("net_buffers", buffers(scaling=False), HOST, DEGRADED, "limited to 64 KiB", Repair.CONFIGURE),
    Row("net_buffers", buffers(1000, receive_most=262144), HOST, SKIPPED, "so fast that it matters"),
    Row("net_buffers", buffers(None, receive_most=262144), HOST, SKIPPED, "so fast that it matters"),
    Row("net_buffers", nic(), HOST, SKIPPED, "not visible here"),
    Row("net_names", own("192.0.2.1"), "name:n1", OK, "is resolved"),
    Row("net_names", own("127.0.1.1"), "name:n1", DEGRADED, "is resolved to itself only", Repair.CONFIGURE),
    Row("net_names", own("198.51.100.9"), "name:n1", DEGRADED, "to an address that no interface here has", Repair.CONFIGURE),
    Row("net_names", own("fe80::1%eth0", interface="fe80::1"), "name:n1", OK, "is resolved"),
    Row("net_names", own("198.51.100.9", interface=""), "name:n1", OK, "is resolved"),
    Row("net_names", name("n1", "10.0.0.1"), "name:n1", OK, "n1 is resolved"),
    Row("net_names", name("n1", "10.0.0.1", seconds=5.0), "name:n1", DEGRADED, "took 5.0 s", Repair.CONFIGURE),
    Row("net_names", {**name("n1", "127.0.1.1", own=True), **name("n2", "10.0.0.2")}, "name:n1", DEGRADED, "to itself only",
        Repair.CONFIGURE),
    Row("net_names", name("n1", "127.0.1.1", own=True), "name:n1", OK, "is resolved"),
    Row("net_names", name("n1", "10.0.0.1"), "name:n2", FAILED, "Name or service not known", Repair.CONFIGURE,
        problems={("name:n2", "name.resolved"): "Name or service not known"}),
    Row("net_names", {}, "name:n1", DEGRADED, "not resolved", Repair.CONFIGURE, problems={("name:n1", "name.resolved"): "no answer"}),
    Row("net_reach", {}, HOST, SKIPPED, "no other node"),
    Row("net_reach", peer("n1", 0.0004), "peer:n1:29500", OK, "answers in 0.40 ms"),
    Row("net_reach", {**peer("n1", 0.0004), **peer("n2", 0.0005), **peer("n3", 0.02)}, "peer:n3:29500", DEGRADED, "takes 20 ms"),
    Row("net_reach", peer("n1", 0.2), "peer:n1:29500", DEGRADED, "takes 200 ms"),
    Row("net_reach", {}, "peer:n1:29500", FAILED, "a firewall, or it is down", Repair.CONFIGURE,
        problems={("peer:n1:29500", "peer.answer"): "timeout"}),
    Row("net_reach", {}, "peer:n1:29500", FAILED, "No route to host", Repair.CONFIGURE,
        problems={("peer:n1:29500", "peer.answer"): "No route to host"}),
    Row("net_ports", {}, HOST, SKIPPED, "no port is known"),
    Row("net_ports", listen(), "listen:29500", OK, "port 29500 is free"),
    Row("net_ports", listen("EADDRINUSE", holder()), "listen:29500", FAILED, "process 77 (python, listening)", Repair.CONFIGURE),
    Row("net_ports", listen("EADDRINUSE"), "listen:29500", FAILED, "nobody that can be seen", Repair.CONFIGURE),
    Row("net_ports", listen("EACCES"), "listen:29500", FAILED, "EACCES", Repair.CONFIGURE),
    Row("net_ports", listen("EADDRINUSE", holder(is_ours=True)), "listen:29500", OK, "held by this job", before=listen()),
    Row("net_ports", listen("EADDRINUSE", holder(is_ours=True)), "listen:29500", OK, "held by this job"),
    Row("net_ports", listen("EADDRINUSE", holder(may_be=True)), "listen:29500", UNKNOWN, "a job that runs here"),
    Row("net_ports", listen("EADDRINUSE", CLOSING, holder(is_ours=True)), "listen:29500", OK, "held by this job"),
    Row("net_ports", listen("EADDRINUSE", holder(is_ours=True), holder()), "listen:29500", FAILED, "process 77", Repair.CONFIGURE),
    Row("net_interfaces", {**nic(), (HOST, "env.variables"): {}}, HOST, OK, "left to NCCL"),
    Row("net_interfaces", chosen("NCCL_SOCKET_IFNAME", "eth"), HOST, OK, "is there"),
    Row("net_interfaces", chosen("NCCL_SOCKET_IFNAME", "^docker,lo"), HOST, OK, "is there"),
    Row("net_interfaces", chosen("NCCL_SOCKET_IFNAME", "bond0"), HOST, FAILED, "bond0: no such interface", Repair.CONFIGURE),
    Row("net_interfaces", chosen("NCCL_SOCKET_IFNAME", "=eth"), HOST, FAILED, "no such interface", Repair.CONFIGURE),
    Row("net_interfaces", chosen("NCCL_SOCKET_IFNAME", "eth1"), HOST, FAILED, "eth1 is down", Repair.CONFIGURE),
    Row("net_interfaces", chosen("GLOO_SOCKET_IFNAME", "eth"), HOST, FAILED, "no such interface", Repair.CONFIGURE),
    Row("net_interfaces", chosen("NCCL_IB_HCA", "mlx5"), HOST, OK, "is there"),
    Row("net_interfaces", chosen("NCCL_IB_HCA", "mlx4_0"), HOST, DEGRADED, "by way of sockets", Repair.CONFIGURE),
    Row("net_interfaces", chosen("NCCL_IB_HCA", "mlx5_2:1", third="DOWN"), HOST, FAILED, "mlx5_2 is not active", Repair.DRAIN),
    Row("net_interfaces", chosen("NCCL_IB_HCA", "mlx5", third="DOWN"), HOST, DEGRADED, "mlx5_2 is not active", Repair.DRAIN),
    Row("net_interfaces", {}, HOST, UNKNOWN, "not visible here"),
]  # fmt: skip


def readings(values: Values, t: float, problems: Mapping[tuple[str, str], str] | None = None) -> Readings:
    rows = [Reading("network", subject, key, value, t=t) for (subject, key), value in values.items()]
    return Readings([*rows, *(Reading("network", subject, key, None, why, t) for (subject, key), why in (problems or {}).items())])


def results_of(check: str, now: Readings, before: Readings | None = None) -> dict[str, CheckResult]:
    return {result.subject: result for result in registry.checks()[check](now, before, Thresholds())}


@pytest.mark.parametrize("row", TABLE, ids=[f"{at}-{row.check}" for at, row in enumerate(TABLE)])
def test_the_table(row: Row) -> None:
    before = None if row.before is None else readings(row.before, 1000.0)
    result = results_of(row.check, readings(row.read, 1000.0 + SPAN, row.problems), before)[row.subject]
    assert (result.result, result.repair, result.blocks) == (row.result, row.repair, False), result
    assert row.words in result.reason
    assert are_apart(result), result


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (None, "7 MiB in, 2 MiB out since the boot"),
        (traffic(2 << 20, 0, dropped=4), "51 KiB/s in, 20 KiB/s out, 5 packets that nobody here took, in 100 s"),
    ],
    ids=["one-look", "two-looks"],
)
def test_the_traffic_of_a_port_is_shown_without_an_alarm(before: Values | None, words: str) -> None:
    now = readings(traffic(7 << 20, 2 << 20, dropped=9), 1000.0 + SPAN)
    result = results_of("net_ethernet", now, readings(before, 1000.0) if before is not None else None)[ETH]
    assert (result.result, result.reason) == (OK, f"eth0 is up; {words}")


def test_every_check_of_the_network_is_held_here() -> None:
    assert {row.check for row in TABLE} == {check for check in registry.checks() if check.startswith("net_")}


def card(root: Path, device: str, pci: str, files: Mapping[str, str]) -> Ask:
    """Make a device with one port as /sys shows it."""
    real = root / "sys/devices" / pci
    at = root / "sys/class/infiniband" / device
    for directory in (at / "ports/1/counters", at / "ports/1/hw_counters", real / "net/ib0"):
        directory.mkdir(parents=True)
    (at / "device").symlink_to(real)
    (root / "sys/drivers/mlx5_core").mkdir(parents=True, exist_ok=True)
    (real / "driver").symlink_to(root / "sys/drivers/mlx5_core")
    verbs = root / "sys/class/infiniband_verbs" / f"uverbs_{device}"
    verbs.mkdir(parents=True)
    (verbs / "ibdev").write_text(device + "\n", "ascii")
    port_state = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand",
            "counters/link_downed": "3", "counters/symbol_error": "N/A (no PMA)", "counters/port_rcv_data": "9",
            "hw_counters/roce_slow_restart": "7"}  # fmt: skip
    for file, text in {**port_state, **files}.items():
        (at / "ports/1" / file).write_text(text + "\n", "ascii")
    for file, text in (("carrier", "0"), ("carrier_changes", "4"), ("mtu", "4092")):
        (real / "net/ib0" / file).write_text(text + "\n", "ascii")
    return Ask(root=str(root))


def test_a_port_of_a_tree(tmp_path: Path) -> None:
    now = Readings(infiniband.read(card(tmp_path, "mlx5_0", "0000:a8:00.0", {})))
    assert now.table("port.state", A) == {
        "state": "ACTIVE", "phys_state": "LinkUp", "rate_gb_s": 400.0, "link_layer": "InfiniBand", "driver": "mlx5_core",
        "device": "mlx5_0", "pci": "0000:a8:00.0", "numa_node": None, "netdev": "ib0", "carrier": False, "carrier_changes": 4, "mtu": 4092,
    }  # fmt: skip
    assert now.table("port.counters", A) == {"link_downed": 3, "roce_slow_restart": 7}
    assert now.value("port.verbs") == ["mlx5_0"]
    assert results_of("net_infiniband", now)[A].result is DEGRADED


COMPLAINT = "3,812,5000,-;mlx5_core 0000:a8:00.0: mlx5_cmd_out_err:839:(pid 9): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation"


@pytest.mark.parametrize("how", ["log", "excluded"])
def test_a_port_whose_reading_makes_the_kernel_complain_is_not_touched(how: str, tmp_path: Path) -> None:
    card(tmp_path, "mlx5_0", "0000:a8:00.0", {})
    ask = card(tmp_path, "mlx5_1", "0000:a9:00.0", {})
    (tmp_path / "dev").mkdir()
    if how == "log":
        (tmp_path / "dev/kmsg").write_text(COMPLAINT + "\n", "ascii")
    else:
        ask = Ask(root=str(tmp_path), options={"infiniband": {"exclude": ["mlx5_0"]}})
    untouched = [tmp_path / "sys/class/infiniband/mlx5_0/ports/1" / file for file in ("rate", "state", "counters/link_downed")]
    other = tmp_path / "sys/class/infiniband/mlx5_1/ports/1/rate"
    for file in (*untouched, other):
        os.utime(file, (1.0, time.time() + 1000))  # with relatime the first read moves it
    now = Readings(infiniband.read(ask))
    assert now.problem("port.state", A) == now.problem("port.counters", A) == NOT_SUPPORTED
    assert now.table("port.counters", B)["link_downed"] == 3
    if other.stat().st_atime == 1.0:
        pytest.skip("this file system keeps no time of the last read: set TMPDIR to one that is mounted without noatime")
    assert [file.stat().st_atime for file in untouched] == [1.0] * 3


def test_every_counter_that_is_judged_is_read() -> None:
    assert {rule.counter for rule in COUNTER_RULES} == infiniband.COUNTERS


def test_a_port_that_answers_einval_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = card(tmp_path, "mlx5_0", "0000:a8:00.0", {})
    paths: list[Path] = []

    def refuse(path: Path) -> bytes:
        paths.append(path)
        raise OSError(22, "Invalid argument")  # what a card answers whose firmware keeps the port to itself

    session = infiniband.session()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", refuse)
        assert Readings(session.read(ask)).problem("port.counters", A) == NOT_SUPPORTED
        assert Readings(session.read(ask)).problem("port.state", A) == NOT_SUPPORTED
    assert [path.name for path in paths] == ["rate"]


def test_a_device_without_a_pci_address_that_answers_einval_silences_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for device, pci in (("mlx5_0", "0000:a8:00.0"), ("mlx5_1", "0000:a9:00.0")):
        ask = card(tmp_path, device, pci, {})
        (tmp_path / "sys/class/infiniband" / device / "device").unlink()  # as soft RoCE
    read_bytes = Path.read_bytes

    def refuse_first(path: Path) -> bytes:
        if "mlx5_0" in path.parts:
            raise OSError(22, "Invalid argument")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse_first)
    now = Readings(infiniband.read(ask))
    assert now.problem("port.counters", A) == NOT_SUPPORTED
    assert now.table("port.counters", B)["link_downed"] == 3


def test_a_device_without_a_pci_address_that_is_excluded_silences_no_other(tmp_path: Path) -> None:
    for device, pci in (("mlx5_0", "0000:a8:00.0"), ("mlx5_1", "0000:a9:00.0")):
        card(tmp_path, device, pci, {})
        (tmp_path / "sys/class/infiniband" / device / "device").unlink()
    now = Readings(infiniband.read(Ask(root=str(tmp_path), options={"infiniband": {"exclude": ["mlx5_0"]}})))
    assert now.problem("port.counters", A) == NOT_SUPPORTED
    assert now.table("port.counters", B)["link_downed"] == 3


def test_interfaces_of_a_tree_and_of_this_machine(tmp_path: Path) -> None:
    at = tmp_path / "sys/class/net/eth0"
    (at / "device").mkdir(parents=True)
    (at / "statistics").mkdir()
    (at.parent / "bonding_masters").write_text("bond0\n", "ascii")
    for file, text in (("operstate", "up"), ("carrier", "1"), ("speed", "-1"), ("mtu", "1500"), ("flags", "0x1003"),
                       ("statistics/rx_packets", "12"), ("carrier_changes", "2")):  # fmt: skip
        (at / file).write_text(text + "\n", "ascii")
    now = Readings(ethernet.read(Ask(root=str(tmp_path))))
    row = now.table("nic.state", ETH)
    assert [row[key] for key in ("carrier", "speed_mb_s", "mtu", "up", "loopback", "virtual")] == [True, None, 1500, True, False, False]
    assert now.value("nic.counters", ETH) == {"rx_packets": 12}
    assert now.value("nic.names") == ["eth0"]
    here = Readings(ethernet.read(Ask()))
    assert here.table("nic.state", "nic:lo")["ipv4"] == "127.0.0.1"


@contextlib.contextmanager
def listener(*, backlog: int = 8) -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(backlog)
        yield int(server.getsockname()[1])


def test_real_peers_answer_or_do_not() -> None:
    with listener() as open_port:
        pass
    with listener() as other:
        now = Readings(reach.read(Ask(hosts=(f"127.0.0.1:{other}", f"localhost:{open_port}"))))
        assert now.table("peer.answer", f"peer:127.0.0.1:{other}")["answer"] == "open"
        assert now.table("peer.answer", f"peer:localhost:{open_port}")["answer"] == "refused"
    results = results_of("net_reach", now)
    assert {result.result for result in results.values()} == {OK}


@pytest.mark.bench
def test_a_silent_peer_costs_no_more_than_the_deadline() -> None:
    with listener(backlog=0) as full, contextlib.ExitStack() as stack:
        for _ in range(4):  # its queue is full: what comes after is dropped, as a firewall does
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)  # noqa: FBT003 -- its only form
            waiting.connect_ex(("127.0.0.1", full))
        begun = time.monotonic()
        now = Readings(reach.read(Ask(hosts=(f"127.0.0.1:{full}",), deadline_s=1.5)))
        assert within(1.5, since=begun)
    assert now.problem("peer.answer", f"peer:127.0.0.1:{full}") == "timeout"


def test_real_names() -> None:
    now = Readings(names.read(Ask(hosts=("localhost:29500", "no-such-host.invalid"))))
    assert now.table("name.resolved", "name:localhost")["addresses"]
    assert now.problem("name.resolved", "name:no-such-host.invalid")
    assert now.one("name.resolved", f"name:{socket.gethostname()}") is not None


@pytest.mark.bench
def test_a_resolver_that_hangs_costs_no_more_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def hang(*_: object, **__: object) -> list[object]:
        let_go.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    begun = time.monotonic()
    now = Readings(names.read(Ask(hosts=("n1",), deadline_s=1.0)))
    assert within(1.0, since=begun)
    let_go.set()
    for thread in threading.enumerate():
        if "_resolve" in thread.name:
            thread.join(10)
    assert "no answer in" in now.problem("name.resolved", "name:n1")


@pytest.mark.parametrize(
    ("word", "pair"),
    [("n1", ("n1", None)), ("n1:5", ("n1", 5)), ("10.0.0.1:5", ("10.0.0.1", 5)), ("[::1]:5", ("::1", 5)), ("fe80::1", ("fe80::1", None))],
    ids=["name", "port", "ipv4", "ipv6-port", "ipv6"],
)
def test_hosts_and_ports(word: str, pair: tuple[str, int | None]) -> None:
    assert names.split(word) == pair


LISTEN = """import socket, sys
listener = socket.socket()
listener.bind(("0.0.0.0", 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
sys.stdin.read()"""


@pytest.mark.process
def test_a_port_that_another_holds_is_reported_with_its_holder() -> None:
    command = [sys.executable, "-c", LISTEN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:  # noqa: S603 -- ours
        assert other.stdout is not None
        port = int(other.stdout.readline())
        now = Readings(ports.read(Ask(ports=(port, 0))))
        row = now.table("listen.state", f"listen:{port}")
        assert row["free"] is False
        [holding] = row["holders"] if isinstance(row["holders"], list) else []
        assert isinstance(holding, dict)
        assert (holding["pid"], holding["state"], holding["ours"]) == (other.pid, "listening", False)
        [result] = results_of("net_ports", now).values()
        assert f"process {other.pid} (" in result.reason
        other.kill()
    assert Readings(ports.read(Ask(ports=(port,)))).table("listen.state", f"listen:{port}")["free"] is True


@pytest.mark.process
@pytest.mark.parametrize(
    ("variables", "cookie", "result"),
    [
        ({"SUPERVISE_JOB_COOKIE": "c00kie"}, "c00kie", OK),
        ({"SUPERVISE_JOB_COOKIE": "another"}, "c00kie", FAILED),
        ({"SUPERVISE_JOB_COOKIE": "another"}, "", UNKNOWN),
        ({"MASTER_PORT": "{port}"}, "", UNKNOWN),
        ({"PET_RDZV_ENDPOINT": "n0:{port}"}, "", UNKNOWN),
        ({"MASTER_PORT": "{port}"}, "c00kie", FAILED),
        ({"MASTER_PORT": "1"}, "", FAILED),
    ],
    ids=["this-job", "another-job", "a-job", "given-it", "endpoint", "given-it-and-not-ours", "given-another"],
)
def test_a_port_that_the_job_itself_holds_is_no_conflict(variables: dict[str, str], cookie: str, result: Result) -> None:
    with listener() as free:
        pass
    port_state = {name: value.format(port=free) for name, value in variables.items()}
    script = LISTEN.replace('("0.0.0.0", 0)', f'("0.0.0.0", {free})')
    environ = {name: value for name, value in os.environ.items() if name not in {"SUPERVISE_JOB_COOKIE", "MASTER_PORT"}}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ | port_state) as other:  # noqa: S603 -- ours
        assert other.stdout is not None
        assert int(other.stdout.readline()) == free
        [results] = results_of("net_ports", Readings(ports.read(Ask(ports=(free,), cookie=cookie)))).values()
        other.kill()
    assert results.result is result, results
