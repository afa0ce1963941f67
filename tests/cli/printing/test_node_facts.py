"""What the printed files know of a node: of the fake NVML, and of trees like /sys and /proc; and what they make of it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from health.model import Ask
from health.probing.runner import Runner
from supervisor.cli.printing import nccl
from supervisor.cli.printing.node_facts import NodeFacts, node_facts
from tests.support import preloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.support.fake_nvml import FakeNvml

pytestmark = pytest.mark.process
TRAIN = ["--", "torchrun", "t.py"]


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def interface(name: str, megabits: int, *, real: bool = True) -> dict[str, str]:
    at = f"sys/class/net/{name}"
    card = {f"{at}/device/vendor": "0x15b3"} if real else {}
    return card | {f"{at}/flags": "0x1003", f"{at}/carrier": "1", f"{at}/speed": str(megabits), f"{at}/operstate": "up"}


def port(device: str, rate: str, layer: str) -> dict[str, str]:
    at = f"sys/class/infiniband/{device}"
    files = {f"{at}/node_type": "1: CA", f"{at}/ports/1/rate": rate, f"{at}/ports/1/link_layer": layer, f"{at}/ports/1/state": "4: ACTIVE"}
    if layer == "Ethernet":
        for index, (gid, kind) in enumerate((("fe80::1", "IB/RoCE v1"), ("fe80::1", "RoCE v2"), ("::ffff:c000:201", "RoCE v2"))):
            files |= {f"{at}/ports/1/gids/{index}": gid, f"{at}/ports/1/gid_attrs/types/{index}": kind}
    return files


def test_a_node_with_two_gpus_infiniband_and_a_card_for_storage(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, interface("eth0", 1000) | interface("eth1", 100000) | interface("cali1", 10000, real=False))
    write(root, port("mlx5_0", "400 Gb/sec (4X NDR)", "InfiniBand") | port("mlx5_1", "100 Gb/sec (4X EDR)", "Ethernet"))
    facts = node_facts(fake_nvml.environ, root=root, addresses={name: ["192.0.2.1"] for name in ("eth0", "eth1", "cali1")})
    assert (facts.gpus, facts.gpu_name, facts.precision, facts.nvlinks) == (2, "FAKE H100 80GB HBM3", "bf16", 18)
    assert [line for line in nccl.variables(facts, {}) if not line.startswith("#")] == [
        "NCCL_IB_HCA==mlx5_0:1",
        "NCCL_SOCKET_IFNAME==eth1",
    ]
    assert facts.memory_bytes is None, "nothing is taken from another place than the tree"


def test_gpus_on_two_sockets(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    assert node_facts(fake_nvml.environ, root=tmp_path).numa_nodes == (), "a machine that does not say"
    now = Runner(fake_nvml.environ).sweep(["nvml"], Ask())
    addresses = [str(now.table("gpu.identity", reading.subject)["pci"]) for reading in now.of("gpu.identity")]
    write(tmp_path, {f"sys/bus/pci/devices/{address}/numa_node": str(node) for node, address in enumerate(addresses)})
    assert node_facts(fake_nvml.environ, root=tmp_path).numa_nodes == (0, 1)


@pytest.mark.parametrize(
    ("state", "environ", "gpus", "why"),
    [
        pytest.param({"all.mig": 1}, {}, 0, "MIG splits its GPUs", id="mig"),
        pytest.param({}, {"CUDA_VISIBLE_DEVICES": "1,3"}, 2, "", id="some"),
        pytest.param({"3.capability": 75}, {}, 4, "", id="precision"),
        pytest.param({"init_error": 9}, {}, 0, "no GPU is visible here (", id="driver", marks=pytest.mark.slow),
        pytest.param({"0.name": "A", "1.name": "B"}, {}, 4, "", id="kinds", marks=pytest.mark.slow),
        pytest.param({}, {"CUDA_VISIBLE_DEVICES": ""}, 0, "no GPU is visible here", id="none", marks=pytest.mark.slow),
        pytest.param({}, {"NVIDIA_VISIBLE_DEVICES": "none"}, 0, "no GPU is visible here", id="container", marks=pytest.mark.slow),
    ],
)
def test_gpus_are_counted_where_their_number_is_known(  # noqa: PLR0913, PLR0917  a case
    fake_nvml: FakeNvml,
    tmp_path: Path,
    state: dict[str, object],
    environ: dict[str, str],
    gpus: int,
    why: str,
) -> None:
    fake_nvml.set(state, gpus=4)
    facts = node_facts({**fake_nvml.environ, **environ}, root=tmp_path)
    assert (facts.gpus, facts.no_gpus[: len(why)], bool(facts.no_gpus)) == (gpus, why, not gpus)
    assert facts.precision == ("" if not gpus else "fp16" if "3.capability" in state else "bf16")


@pytest.fixture
def printed(fake_nvml: FakeNvml, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Give a function that calls `supervise print` on this node."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        done = preloaded.command_text("print", *words, cwd=tmp_path, environ=fake_nvml.environ)
        assert done.returncode == 0, done.stderr
        return done

    return call


def test_a_batch_script_offers_what_this_node_has_as_comments_that_slurm_passes_over(
    printed: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    text = printed("slurm", *TRAIN).stdout
    offered = [line for line in text.splitlines() if line.startswith("##SBATCH")]
    assert [line.partition("=")[0] for line in offered] == ["##SBATCH --gpus-per-node", "##SBATCH --cpus-per-task"]
    assert offered[0] == "##SBATCH --gpus-per-node=2"
    above, _, _ = text.partition("##SBATCH")
    assert "srun" not in above, "Slurm reads directives up to the first command"
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=120)  # noqa: S607
    for given in ("gpus-per-node=8", "gres=gpu:8"):
        assert "##SBATCH" not in printed("slurm", "--sbatch", given, *TRAIN).stdout
    assert "##SBATCH --cpus" not in printed("slurm", "--sbatch", "cpus-per-task=4", *TRAIN).stdout


def test_of_pods_without_gpus_the_number_of_this_node_is_named_beside_the_manifest(
    printed: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = printed("kubernetes", *TRAIN)
    assert "--gpus 2 asks for as many" in done.stderr
    assert "nvidia.com/gpu" not in done.stdout
    assert printed("kubernetes", "--gpus", "8", *TRAIN).stderr == ""


def test_a_login_node_has_its_processors_and_no_gpu(tmp_path: Path) -> None:
    facts = node_facts({}, root=tmp_path)
    assert facts == NodeFacts(facts.node, no_gpus="no GPU is visible here (NVML Shared Library Not Found)", cores=facts.cores)
