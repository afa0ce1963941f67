"""`supervise print nccl`: a line stands there only where NCCL would choose badly, and each reader of the file gets the same from it."""

from __future__ import annotations

import random
import subprocess
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from health.nvidia.gids import ROCE_V1, ROCE_V2, Gid, nccl_choices
from health.probes.infiniband import Port
from health.probes.nics import Nic
from supervisor.cli.printing import nccl
from supervisor.cli.printing.node_facts import NodeFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def nic(name: str = "eth0", gigabits: int | None = 25, *addresses: str, real: bool = True, default: bool = False, up: bool = True) -> Nic:
    speed = None if gigabits is None else gigabits * 1000
    given = addresses or ("192.0.2.1",)
    return Nic(name, is_virtual=not real, is_up=up, carrier=up or None, speed_mb_s=speed, addresses=given, is_default_route=default)


GENERATOR = Path("/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator")
LO = Nic("lo", is_loopback=True, is_up=True, carrier=True, addresses=("127.0.0.1",))
#: What a card of NVIDIA's has of an interface with an IPv4 address: each GID as RoCE v1 and as v2.
LINK, IPV4, GLOBAL = "fe80::1", "::ffff:192.0.2.1", "2001:db8::1"
USUAL = ((0, LINK, ROCE_V1), (1, LINK, ROCE_V2), (2, IPV4, ROCE_V1), (3, IPV4, ROCE_V2))


def port(device: str, rate: float = 400.0, *gids: tuple[int, str, str], state: str = "ACTIVE", driver: str = "mlx5_core") -> Port:
    layer = "Ethernet" if gids else "InfiniBand"
    table = tuple(Gid(*row) for row in gids)
    return Port(device, 1, driver=driver, node_type="CA", state=state, rate_gb_s=rate, link_layer=layer, gids=table)


def roce(device: str, *gids: tuple[int, str, str], rate: float = 400.0) -> Port:
    return port(device, rate, *(gids or USUAL))


NICS: dict[str, tuple[list[Nic], str]] = {
    "one": ([LO, nic()], ""),
    "a slow one of management, and a fast one": ([nic("eth0", 1, default=True), nic("eth1", 100)], "=eth1"),
    "two of one speed: NCCL uses both": ([nic("eth0", default=True), nic("eth1")], ""),
    "the network of containers": ([nic(default=True), nic("cali1", 10, real=False), nic("cni0", None, real=False)], "=eth0"),
    "what NCCL leaves for the last": ([nic(), nic("docker0", None, real=False), nic("virbr0", None, real=False)], ""),
    "a pod": ([LO, nic(gigabits=10, real=False, default=True)], ""),
    "a bond": ([Nic("bond0", is_bond=True, is_up=True, addresses=("192.0.2.1",)), nic("tun0", None, real=False)], "=bond0"),
    "a bridge that the default route leads over": ([nic("br0", 10, real=False, default=True), nic("veth1", 10, real=False)], "=br0"),
    "IP over InfiniBand comes first anyway": ([nic("ib0"), nic("eth0", 100, default=True)], ""),
    "one without an address, and one that is off": ([nic(), nic("eth1", 100, "fe80::2"), nic("eth2", 100, up=False)], ""),
    "IPv6 alone": ([nic("eth0", 25, GLOBAL), nic("tun0", None, GLOBAL, real=False)], "=eth0"),
    "none": ([LO], ""),
}  # fmt: skip
STORAGE = roce("mlx5_8", rate=100.0)
PORTS: dict[str, tuple[list[Port], dict[str, str]]] = {
    "none": ([], {}),
    "eight alike": ([port(f"mlx5_{at}") for at in range(8)], {}),
    "a slower one for storage": ([port("mlx5_0"), port("mlx5_1"), STORAGE], {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}),
    "one of InfiniBand for storage": ([roce("mlx5_0"), roce("mlx5_1"), port("mlx5_2")], {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}),
    "one that is faster": ([port("mlx5_0"), port("mlx5_1"), port("mlx5_2"), roce("mlx5_3", rate=800.0)],
        {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1,mlx5_2:1"}),
    "RoCE beside InfiniBand of one rate": ([port("mlx5_0"), roce("mlx5_1")], {"NCCL_IB_HCA": "=mlx5_0:1"}),
    "one that is down": ([port("mlx5_0"), port("mlx5_1", 10.0, state="DOWN")], {}),
    "RoCE": ([roce("mlx5_0"), roce("mlx5_1")], {}),
    "RoCE v2 alone": ([roce("bnxt_0", (0, LINK, ROCE_V2))], {}),
    "no address": ([roce("mlx5_0", *USUAL[:2])], {}),
    "an IPv6 address": ([roce("mlx5_0", *USUAL[:2], (2, GLOBAL, ROCE_V1), (3, GLOBAL, ROCE_V2))], {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}),
    "addresses of both families": ([roce("mlx5_0", *USUAL, (4, GLOBAL, ROCE_V2))], {}),
    "one port with IPv6, one with IPv4": ([roce("mlx5_0", (0, GLOBAL, ROCE_V2)), roce("mlx5_1")], {}),
    "IPv4 as RoCE v1": ([roce("mlx5_0", (0, IPV4, ROCE_V1))], {}),
    "types that may not be read": ([roce("mlx5_0", (0, LINK, ""), (1, IPV4, ""))], {}),
    "EFA": ([Port("rdmap0", 1, driver="efa", node_type="unknown", state="ACTIVE", link_layer="Ethernet")], {}),
}  # fmt: skip


def lines(nics: Sequence[Nic] = (), ports: Sequence[Port] = (), environ: Mapping[str, str] | None = None) -> list[str]:
    facts = NodeFacts("n1", gpus=8, gpu_name="NVIDIA H200", nvlinks=18, nics=tuple(nics), ports=tuple(ports))
    return list(nccl.variables(facts, environ or {}))


def as_nccl_reads_it(text: str) -> dict[str, str]:
    """Return what NCCL makes of a file (setEnvFile of src/misc/param.cc)."""
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#") and "=" in line)


def as_a_shell_reads_it(text: str, place: Path) -> dict[str, str]:
    (place / "nccl.env").write_text(text + "\n")
    command = ["bash", "-euc", "set -a; . ./nccl.env; set +a; env -0"]
    done = subprocess.run(command, cwd=place, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=120, check=True)  # noqa: S603
    variables = dict(row.split("=", 1) for row in done.stdout.split("\0") if row)
    return {name: value for name, value in variables.items() if name.startswith("NCCL")}


@pytest.mark.parametrize("case", NICS)
def test_an_interface_is_named_only_where_nccl_would_take_another_too(case: str, tmp_path: Path) -> None:
    nics, expected = NICS[case]
    text = "\n".join(lines(nics))
    variables = {"NCCL_SOCKET_IFNAME": expected} if expected else {}
    assert as_nccl_reads_it(text) == as_a_shell_reads_it(text, tmp_path) == variables


@pytest.mark.parametrize("case", PORTS)
def test_ports_and_a_gid_are_named_only_where_nccl_would_take_others(case: str, tmp_path: Path) -> None:
    ports, expected = PORTS[case]
    text = "\n".join(lines([nic()], ports))
    assert as_nccl_reads_it(text) == as_a_shell_reads_it(text, tmp_path) == expected


@pytest.mark.skipif(not GENERATOR.exists(), reason="needs systemd's environment generator (Debian: apt-get install systemd)")
@pytest.mark.parametrize("case", [case for case in PORTS if PORTS[case][1]])
def test_systemd_reads_the_same(case: str, tmp_path: Path) -> None:
    """Its generator reads files as EnvironmentFile= does (src/basic/env-file.c)."""
    ports, expected = PORTS[case]
    text = "\n".join(lines(NICS["the network of containers"][0], ports))
    (tmp_path / "environment.d").mkdir()
    (tmp_path / "environment.d/nccl.conf").write_text(text + "\n")
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([GENERATOR], env=environ, capture_output=True, text=True, timeout=120, check=True)  # noqa: S603
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith("NCCL"))
    assert variables == {**expected, "NCCL_SOCKET_IFNAME": "=eth0"}


def test_each_line_stands_below_its_reason() -> None:
    text = lines([nic("eth0", 1, default=True), nic("eth1", 100)], [roce("mlx5_0", *USUAL[:2]), roce("mlx5_1", *USUAL[:2], rate=25.0)])
    assert text == [
        "# NCCL on n1: 8 NVIDIA H200",
        "# For nodes like this one. What NCCL finds well by itself is not set: a line too many outlives its reason.",
        "# NVLink: 18 links are up on each GPU. NCCL finds them.",
        "# mlx5_0:1: 400 Gb/s RoCE, the most together. NCCL would send over mlx5_1:1 (25 Gb/s RoCE) as well. = in front: exact names.",
        "NCCL_IB_HCA==mlx5_0:1",
        "# mlx5_0:1: no RoCE v2 GID of an address: NCCL takes one that no router passes on. `supervise doctor` says what helps.",
        "# eth1: 100 Gb/s. NCCL would take eth0 (1 Gb/s) as well. = in front: exact names.",
        "NCCL_SOCKET_IFNAME==eth1",
    ]


def test_a_node_of_which_nothing_is_known_gets_a_file_that_sets_nothing_and_says_so() -> None:
    text = list(nccl.variables(NodeFacts("login1", no_gpus="no GPU is visible here"), {}))
    assert all(line.startswith("# ") for line in text)
    assert text[0] == "# NCCL on login1: no GPU is visible here"
    assert sum("visible here" in line for line in text) == 3


def test_a_variable_that_no_library_reads_is_named_with_its_correction(tmp_path: Path) -> None:
    environ = {
        "NCCL_LL_THRESHOLD": "0",
        "NCCL_ASYNC_ERROR_HANDLING": "1\nNCCL_IB_DISABLE=1",
        "NCCL_DEBUG": "INFO",
        "NCCL_PROTO": "LL",
    }
    text = lines(environ=environ)
    named = [line for line in text if "set in this shell" in line]
    assert len(named) == 2
    assert "does nothing: neither torch nor NCCL reads it; NCCL 2.5 removed it" in named[0]
    assert named[0].endswith(": unset NCCL_LL_THRESHOLD")
    assert "export TORCH_NCCL_ASYNC_ERROR_HANDLING='1 NCCL_IB_DISABLE=1'" in named[1]
    assert as_a_shell_reads_it("\n".join(text), tmp_path) == {}


def index_of_nccl(table: Sequence[Gid], length: int, wanted: int) -> int:
    """Return the index that NCCL 2.21 to 2.31 takes for a family, 4 or 6 (ncclIbGetGidIndex in src/transport/net_ib)."""
    by_index = {gid.index: gid for gid in table}

    def valid(index: int) -> bool:
        return index in by_index and not IPv6Address(by_index[index].gid).is_link_local

    def family(index: int) -> int:
        return 4 if index in by_index and by_index[index].ipv4 else 6

    def version(index: int) -> int:
        return {ROCE_V1: 1, ROCE_V2: 2}[by_index[index].type] if index in by_index else 0

    index = 0
    for candidate in (at for at in range(1, length) if family(at) == wanted):
        is_better = version(candidate) == 2 and (version(index) != 2 or not valid(index))
        if family(index) != wanted or (valid(candidate) and is_better):
            index = candidate
    return index


def test_nccl_takes_the_gid_that_the_file_names() -> None:
    """A stand-in for NCCL's own loop, over thousands of tables."""
    lot = random.Random(37)  # noqa: S311  no secret
    for _ in range(3_000):
        length = lot.randint(1, 8)
        rows = [Gid(at, lot.choice((LINK, IPV4, GLOBAL)), lot.choice((ROCE_V1, ROCE_V2))) for at in range(length) if lot.random() < 0.8]
        for wanted in (4, 6):
            index = index_of_nccl(rows, length, wanted)
            usable = [gid.index for gid in nccl_choices(rows, is_ipv4=wanted == 4)]
            assert not usable or index == usable[0], (rows, wanted)
