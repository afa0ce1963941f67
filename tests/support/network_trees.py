"""Network cards as /sys shows them, below a folder of a test: interfaces, InfiniBand and RoCE ports, and a node like a DGX of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: A card's own GID comes first, of both types; then one pair for each of its addresses.
ROCE_GIDS = (
    ("fe80:0000:0000:0000:0ac0:ebff:fe3d:ca54", "IB/RoCE v1"),
    ("fe80:0000:0000:0000:0ac0:ebff:fe3d:ca54", "RoCE v2"),
    ("0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1"),
    ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
)
_EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def write(folder: Path, files: Mapping[str, object]) -> None:
    """Write each file of a folder, with a line's end as the kernel does."""
    for name, value in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{value}\n", "ascii")


def interface(  # noqa: PLR0913  each by name
    root: Path, name: str, *, driver: str = "mlx5_core", speed: int = 400_000, mtu: int = 9000, numa_node: int = 0, bond: str = "",
    **counters: int,
) -> Path:  # fmt: skip
    """Make a network interface that is up; without a driver a virtual one. Return its folder."""
    folder = root / "sys/class/net" / name
    write(folder, {"operstate": "up", "carrier": 1, "speed": speed, "mtu": mtu, "flags": "0x1003", "carrier_changes": 2, "type": 1})
    write(folder / "statistics", {"rx_bytes": 0, "tx_bytes": 0, "rx_packets": 0, "tx_packets": 0, **counters})
    if driver:
        card = root / "sys/devices" / name
        write(card, {"numa_node": numa_node})
        (root / "sys/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (card / "driver").symlink_to(root / "sys/drivers" / driver)
        (folder / "device").symlink_to(card)
    if bond:
        (root / "sys/class/net" / bond / "bonding").mkdir(parents=True, exist_ok=True)
        (folder / "master").symlink_to(root / "sys/class/net" / bond)
    return folder


def port(  # noqa: PLR0913  each by name
    root: Path, device: str, *, pci: str, link_layer: str = "InfiniBand", netdev: str = "", numa_node: int = 0,
    gids: Sequence[tuple[str, str]] = (("fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1"),),
) -> Path:  # fmt: skip
    """Make a device of one port that is active, with two empty entries behind its GIDs. Return the port's folder."""
    card, folder = root / "sys/devices" / pci, root / "sys/class/infiniband" / device
    write(card, {"numa_node": numa_node})
    (root / "sys/drivers/mlx5_core").mkdir(parents=True, exist_ok=True)
    (card / "driver").symlink_to(root / "sys/drivers/mlx5_core")
    write(folder, {"node_type": "1: CA"})
    (folder / "device").symlink_to(card)
    one_port = folder / "ports/1"
    write(one_port, {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": link_layer})
    write(root / "sys/class/infiniband_verbs" / f"uverbs_{device}", {"ibdev": device})
    for index, (gid, kind) in enumerate(gids):
        write(one_port, {f"gids/{index}": gid, f"gid_attrs/types/{index}": kind})
        if netdev:
            write(one_port, {f"gid_attrs/ndevs/{index}": netdev})
    write(one_port, {f"gids/{len(gids)}": _EMPTY, f"gids/{len(gids) + 1}": _EMPTY})
    if netdev:
        write(card / "net" / netdev, {"carrier": 1, "carrier_changes": 2, "mtu": 9000})
    return one_port


def node_like_a_dgx(root: Path, *, is_roce: bool = False) -> Path:
    """Make a healthy node: eight cards for GPUs on two NUMA nodes, two storage cards in a bond, one slow port for people. Return root."""
    for number in range(8):
        name = f"gpu{number}rdma" if is_roce else f"ib{number}"
        interface(root, name, numa_node=number // 4, mtu=9000 if is_roce else 4092)
        gids = {"gids": ROCE_GIDS} if is_roce else {}
        link_layer = "Ethernet" if is_roce else "InfiniBand"
        port(root, f"mlx5_{number}", pci=f"0000:{number:02x}:00.0", link_layer=link_layer, netdev=name, numa_node=number // 4, **gids)
    interface(root, "bond0", driver="", speed=400_000)
    for number in range(2):
        interface(root, f"storage{number}", speed=200_000, bond="bond0")
    interface(root, "eno1", driver="ixgbe", speed=10_000, mtu=1500)
    interface(root, "docker0", driver="", speed=-1, mtu=1500)
    loopback = interface(root, "lo", driver="", speed=-1, mtu=65536)
    write(loopback, {"flags": "0x9", "type": 772})
    header = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
    routes = ["eno1\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0", "bond0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0"]
    write(root / "proc/net", {"route": "\n".join((header, *routes))})
    buffers = "4096\t131072\t134217728"
    write(
        root / "proc/sys/net", {"core/rmem_max": 134217728, "core/wmem_max": 134217728, "ipv4/tcp_rmem": buffers, "ipv4/tcp_wmem": buffers}
    )
    return root
