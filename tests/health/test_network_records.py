"""The records of interfaces and InfiniBand ports: of a node like a DGX, of nodes that have less, and of this machine."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from health.nvidia.gids import IB, ROCE_V1, ROCE_V2, Gid
from health.probes import infiniband
from health.probes.nics import Nic, nics
from tests.support import network_trees


def by_name(root: Path) -> dict[str, Nic]:
    return {nic.name: nic for nic in nics(root, {"eno1": ["10.1.0.7", "fe80::7"]})}


def test_the_interfaces_of_a_node_like_a_dgx(tmp_path: Path) -> None:
    every = by_name(network_trees.node_like_a_dgx(tmp_path))
    assert len(every) == 14
    assert every["ib5"] == Nic(
        name="ib5", driver="mlx5_core", is_virtual=False, is_up=True, operstate="up", carrier=True, carrier_changes=2, speed_mb_s=400_000,
        mtu=4092, numa_node=1, counters={"rx_bytes": 0, "tx_bytes": 0, "rx_packets": 0, "tx_packets": 0},
    )  # fmt: skip
    assert [name for name, nic in every.items() if nic.is_default_route] == ["eno1"]
    assert [name for name, nic in every.items() if nic.is_virtual] == ["bond0", "docker0", "lo"]
    assert ([name for name, nic in every.items() if nic.bond == "bond0"], every["bond0"].is_bond) == (["storage0", "storage1"], True)
    assert every["lo"].is_loopback
    assert (every["eno1"].ipv4, every["eno1"].addresses, every["ib0"].ipv4) == ("10.1.0.7", ("10.1.0.7", "fe80::7"), "")


def test_an_unreadable_value_is_absent_and_no_zero(tmp_path: Path) -> None:
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/1").mkdir(parents=True)
    [nic], [port] = nics(tmp_path), infiniband.ports(tmp_path)
    assert nic == Nic(name="eth0")
    assert (nic.speed_mb_s, nic.mtu, nic.numa_node, nic.carrier, nic.counters) == (None, None, None, None, {})
    assert (port.device, port.number, port.rate_gb_s, port.mtu, port.numa_node, port.gids) == ("mlx5_0", 1, None, None, None, ())
    assert not port.is_active
    assert not port.is_roce


def test_a_node_without_infiniband_has_no_ports(tmp_path: Path) -> None:
    assert infiniband.ports(tmp_path) == ()
    with pytest.raises(FileNotFoundError):
        nics(tmp_path)


def test_the_default_route_is_that_of_the_smallest_metric_and_ipv6_counts_where_ipv4_has_none(tmp_path: Path) -> None:
    for name in ("eth0", "eth1"):
        network_trees.interface(tmp_path, name)
    rows = [f"{name}\t00000000\t01000A0A\t0003\t0\t0\t{metric}\t00000000\t0\t0\t0" for name, metric in (("eth0", 200), ("eth1", 100))]
    network_trees.write(tmp_path / "proc/net", {"route": "\n".join(("Iface", *rows))})
    assert [nic.name for nic in nics(tmp_path) if nic.is_default_route] == ["eth1"]
    zero = "0" * 32
    rows = [
        f"{zero} 00 {zero} 00 {zero} {metric} 00000001 00000000 00000003 {name}"
        for metric, name in (("00000400", "eth0"), ("ffffffff", "lo"))
    ]
    network_trees.write(tmp_path / "proc/net", {"route": "Iface", "ipv6_route": "\n".join(rows)})
    assert [nic.name for nic in nics(tmp_path) if nic.is_default_route] == ["eth0"]


def test_the_gids_of_roce_and_of_infiniband(tmp_path: Path) -> None:
    roce, plain = tmp_path / "roce", tmp_path / "plain"
    ports = infiniband.ports(network_trees.node_like_a_dgx(roce, is_roce=True))
    assert [(port.device, port.numa_node, port.netdev, port.is_roce, port.is_active) for port in ports] == [
        (f"mlx5_{number}", number // 4, f"gpu{number}rdma", True, True) for number in range(8)
    ]
    assert [(gid.index, gid.type, gid.ipv4, gid.is_link_local) for gid in ports[0].gids] == [
        (0, ROCE_V1, "", True), (1, ROCE_V2, "", True), (2, ROCE_V1, "10.0.0.1", False), (3, ROCE_V2, "10.0.0.1", False),
    ]  # fmt: skip
    assert {gid.netdev for gid in ports[0].gids} == {"gpu0rdma"}
    ports = infiniband.ports(network_trees.node_like_a_dgx(plain))
    assert [port.is_roce for port in ports] == [False] * 8
    assert ports[0].gids == (Gid(0, "fe80:0000:0000:0000:0000:0000:0000:0001", IB, "ib0"),)


def test_iwarp_s_ports_have_ethernet_and_are_no_roce(tmp_path: Path) -> None:
    network_trees.port(tmp_path, "irdma0", pci="0000:01:00.0", link_layer="Ethernet")
    network_trees.write(tmp_path / "sys/class/infiniband/irdma0", {"node_type": "4: RNIC"})
    assert [port.is_roce for port in infiniband.ports(tmp_path)] == [False]


def test_a_device_that_is_excluded_is_not_among_the_ports(tmp_path: Path) -> None:
    network_trees.node_like_a_dgx(tmp_path)
    assert [port.device for port in infiniband.ports(tmp_path, excluded=[f"mlx5_{number}" for number in range(7)])] == ["mlx5_7"]


def test_the_interfaces_of_this_machine_are_those_that_psutil_lists() -> None:
    every = nics()
    assert {nic.name for nic in every} == set(psutil.net_if_stats())
    counts = psutil.net_io_counters(pernic=True)
    for nic in every:
        if nic.name in counts and "rx_bytes" in nic.counters:  # the same counters of the kernel, read a moment later
            assert nic.counters["rx_bytes"] <= counts[nic.name].bytes_recv
    assert all(nic.is_loopback for nic in every if nic.ipv4 == "127.0.0.1")
    assert {port.device for port in infiniband.ports()} <= {path.name for path in Path("/sys/class/infiniband").glob("*")}
