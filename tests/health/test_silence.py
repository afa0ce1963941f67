"""The checks of a node's settings are silent on a laptop, in a container, and on a healthy node like a DGX: read from trees like /sys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from health import registry
from health.model import Ask, CheckResult, Readings, Result
from health.probes import environment
from health.probes.network import ethernet, infiniband
from health.thresholds import Thresholds
from tests.support import network_trees

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHECKS = ("net_gids", "net_buffers", "net_mtu", "net_ethernet", "net_infiniband")


def laptop(root: Path) -> None:
    """Make a wireless card that has no speed, a wired one of 1 Gb/s without a cable, bridges, and the kernel's own buffers."""
    network_trees.interface(root, "wlan0", driver="iwlwifi", speed=-1, mtu=1500)
    wired = network_trees.interface(root, "enp0s31f6", driver="e1000e", speed=-1, mtu=1500)
    network_trees.write(wired, {"flags": "0x1002", "operstate": "down"})
    (wired / "carrier").unlink()  # the kernel gives EINVAL
    network_trees.interface(root, "docker0", driver="", speed=-1, mtu=1500)
    network_trees.write(
        root / "proc/sys/net",
        {
            "core/rmem_max": 212992,
            "core/wmem_max": 212992,
            "ipv4/tcp_rmem": "4096\t131072\t6291456",
            "ipv4/tcp_wmem": "4096\t16384\t4194304",
            "ipv4/tcp_window_scaling": 1,
        },
    )


def container(root: Path) -> None:
    """Make what a container sees: an interface without a card, no InfiniBand, and of the kernel's settings none."""
    network_trees.interface(root, "eth0", driver="", speed=10_000, mtu=1500)
    loopback = network_trees.interface(root, "lo", driver="", speed=-1, mtu=65536)
    network_trees.write(loopback, {"flags": "0x9"})


def nothing(_root: Path) -> None:
    """Make a folder without /sys."""


def results(root: Path, environ: Mapping[str, str], before: Readings | None = None) -> tuple[list[CheckResult], Readings]:
    ask = Ask(root=str(root), environ=environ)
    now = Readings([*ethernet.read(ask), *infiniband.read(ask), *environment.read(ask)])
    return [result for name in CHECKS for result in registry.checks()[name](now, before, Thresholds())], now


@pytest.mark.parametrize(
    "make",
    [laptop, container, nothing, network_trees.node_like_a_dgx, lambda root: network_trees.node_like_a_dgx(root, is_roce=True)],
    ids=["laptop", "container", "nothing", "dgx-infiniband", "dgx-roce"],
)
def test_a_healthy_node_gets_no_alarm(make: object, tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path)
    first, before = results(tmp_path, {})
    again, _ = results(tmp_path, {}, before)
    alarms = [result for result in (*first, *again) if result.result not in {Result.OK, Result.SKIPPED}]
    assert not alarms


def test_the_node_like_a_dgx_is_judged_and_not_skipped(tmp_path: Path) -> None:
    all_results, _ = results(network_trees.node_like_a_dgx(tmp_path, is_roce=True), {})
    assert {result.check for result in all_results if result.result is Result.OK} == set(CHECKS)


def test_faults_of_such_a_node_are_reported(tmp_path: Path) -> None:
    network_trees.node_like_a_dgx(tmp_path, is_roce=True)
    network_trees.write(
        tmp_path / "sys/class/infiniband/mlx5_3/ports/1", {"gid_attrs/types/1": "IB/RoCE v1", "gid_attrs/types/3": "IB/RoCE v1"}
    )
    network_trees.write(tmp_path / "sys/class/net/storage1", {"mtu": 1500})
    network_trees.write(tmp_path / "proc/sys/net", {"ipv4/tcp_rmem": "4096\t87380\t1048576"})
    all_results, _ = results(tmp_path, {})
    alarms = {(result.check, result.subject) for result in all_results if result.result is Result.DEGRADED}
    assert alarms == {("net_gids", "port:mlx5_3/1"), ("net_mtu", "host"), ("net_buffers", "host")}
    assert not [result for result in all_results if result.blocks or result.result is Result.FAILED]
