"""The ranks of a command and the GPUs that they will see: refusals, warnings, and silence if nothing is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from health.model import HOST, Reading, Readings
from supervisor.launch.launchers import ALL, UNKNOWN, PlannedRanks
from supervisor.node import rank_places

if TYPE_CHECKING:
    from collections.abc import Mapping

    from health.model import Json

CPUS = range(64)
UUIDS = [f"GPU-{number}aaa0000-0000-0000-0000-000000000000" for number in range(16)]


def node(  # noqa: PLR0913  one for each way in which nodes differ
    gpus: int,
    *,
    on_bus: int | None = None,
    files: int | None = None,
    mig: tuple[int, ...] = (),
    named: int | None = None,
    lost: int = -1,
    ports: Mapping[str, int] | None = None,
) -> Readings:
    """Return the readings of a node whose first half of GPUs is at NUMA node 0 with CPUs 0-31, the other at 1 with 32-63.

    files: device files that may be opened; on_bus: GPUs of the host; named: those that NVML came to; lost: one that has no name any more.
    """
    readings = [Reading("nvml", HOST, "nvml.count", gpus), Reading("nvml", HOST, "nvml.init", {"code": 0, "words": ""})]
    readings.append(Reading("pci", HOST, "dev.gpus", [*range(gpus if files is None else files)]))
    for number in range(gpus if named is None else named):
        subject = f"gpu:#{number}" if number == lost else f"gpu:{UUIDS[number]}"
        readings.append(Reading("nvml", subject, "gpu.identity", {"index": number, "pci": f"0000:{number:02x}:00.0", "name": "H100"}))
        readings.append(Reading("nvml", subject, "gpu.mig_mode", [int(number in mig), 0]))
    half = max(gpus // 2, 1)
    rows: list[Json] = [
        {"address": f"0000:{number:02x}:00.0", "numa_node": str(number // half), "local_cpulist": ("0-31", "32-63")[min(number // half, 1)]}
        for number in range(gpus if on_bus is None else on_bus)
    ]
    readings.append(Reading("pci", HOST, "pci.gpus", rows))
    for name, numa_node in (ports or {}).items():
        table: dict[str, Json] = {"device": name, "state": "ACTIVE", "numa_node": numa_node}
        readings.append(Reading("infiniband", f"port:{name}/1", "port.state", table))
    return Readings(readings)


def torchrun(ranks: int | None) -> PlannedRanks:
    return PlannedRanks("torchrun", ranks, f"--nproc-per-node={'gpu' if ranks is None else ranks}", "--nproc-per-node=")


def accelerate(ranks: int, devices: str | None = None, *, needs_several: bool = False) -> PlannedRanks:
    place = "CUDA_VISIBLE_DEVICES=" if devices is None else "--gpu_ids="
    how = f"--num_processes={ranks}"
    return PlannedRanks("accelerate", ranks, how, "--num_processes=", devices=devices, place=place, needs_several=needs_several)


def deepspeed(listed: str) -> PlannedRanks:
    how, ranks = f"--include localhost:{listed}", len(listed.split(","))
    return PlannedRanks("deepspeed", ranks, how, "--num_gpus=", devices=listed, place="--include=localhost:")


def outcomes(planned: PlannedRanks, readings: Readings, **environ: str) -> list[tuple[bool, str, str]]:
    """Return of each finding whether it holds the start back, its subject, and the line to write."""
    places = rank_places.findings(planned, environ, readings, CPUS)
    assert all(finding.command in finding.reason or finding.blocks for finding in places), "a warning names its line"
    assert {finding.check for finding in places} <= {"rank_places"}
    return [(finding.blocks, finding.subject.removeprefix("ranks:"), finding.command) for finding in places]


@pytest.mark.parametrize(
    ("planned", "visible", "line"),
    [
        (torchrun(4), "0,1,2,9", "CUDA_VISIBLE_DEVICES=0,1,2,3"),
        (torchrun(3), "0,9,1", "CUDA_VISIBLE_DEVICES=0,1,2"),
        (torchrun(1), "4", "CUDA_VISIBLE_DEVICES=0"),
        (torchrun(5), "0,1,2,3,4", "--nproc-per-node=4"),
        (torchrun(2), f"{UUIDS[2]},GPU-ffff", f"CUDA_VISIBLE_DEVICES={UUIDS[2]},{UUIDS[0]}"),
        (torchrun(3), "3,2,9", "CUDA_VISIBLE_DEVICES=3,2,0"),
        (torchrun(None), "7", "CUDA_VISIBLE_DEVICES=0"),
        (accelerate(2, "0,9"), None, "--gpu_ids=0,1"),
        (accelerate(2, "0,9"), "0,1", "--gpu_ids=0,1"),
        (accelerate(2), "0,9", "CUDA_VISIBLE_DEVICES=0,1"),
        (deepspeed("0,9"), None, "--include=localhost:0,1"),
        (PlannedRanks("deepspeed", 2, "CUDA_VISIBLE_DEVICES=0,9", "--num_gpus=", devices="0,9"), "0,9", "CUDA_VISIBLE_DEVICES=0,1"),
        (PlannedRanks("srun", 4, "4 tasks of step 7.0", "--ntasks-per-node="), "0,1,2,9", "CUDA_VISIBLE_DEVICES=0,1,2,3"),
    ],
)
def test_a_gpu_that_a_rank_is_to_have_and_that_is_not_there_holds_the_start_back(
    planned: PlannedRanks, visible: str | None, line: str
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert outcomes(planned, node(4), **environ) == [(True, "list", line)]


def test_a_container_with_some_of_the_hosts_gpus_has_those_alone() -> None:
    assert outcomes(torchrun(2), node(2, on_bus=8, files=2), CUDA_VISIBLE_DEVICES="6,7") == [(True, "list", "CUDA_VISIBLE_DEVICES=0,1")]
    assert outcomes(torchrun(4), node(2, on_bus=8, files=2)) == [(False, "shared", "--nproc-per-node=2")]


def test_a_refusal_says_what_is_there_and_which_rank_gets_nothing() -> None:
    (finding,) = rank_places.findings(torchrun(4), {"CUDA_VISIBLE_DEVICES": "0,1,2,9"}, node(4), CPUS)
    assert finding.reason == (
        "CUDA_VISIBLE_DEVICES=0,1,2,9 names GPU 9, which this node does not have (it has GPUs 0 to 3): of torchrun's 4 ranks here"
        " (--nproc-per-node=4) rank 3 gets no GPU, because CUDA shows the 3 before it (invalid device ordinal)"
    )


def test_a_slot_that_is_to_be_left_out_and_is_not_there_holds_the_start_back() -> None:
    planned = PlannedRanks("deepspeed", None, "--exclude localhost:9", "--num_gpus=", devices=ALL, excluded=("9",))
    assert outcomes(planned, node(4)) == [(True, "list", "no slot 9 after --exclude")]
    assert outcomes(PlannedRanks("deepspeed", None, "--exclude localhost:1", "--num_gpus=", devices=ALL, excluded=("1",)), node(4)) == []


@pytest.mark.parametrize(
    ("planned", "environ", "line"),
    [
        (torchrun(8), {}, "--nproc-per-node=4"),
        (torchrun(4), {"CUDA_VISIBLE_DEVICES": "2,3"}, "--nproc-per-node=2 or CUDA_VISIBLE_DEVICES=2,3,0,1"),
        (torchrun(2), {"CUDA_VISIBLE_DEVICES": "2,-1,3"}, "--nproc-per-node=1 or CUDA_VISIBLE_DEVICES=2,0"),
        (torchrun(4), {"NVIDIA_VISIBLE_DEVICES": f"{UUIDS[0]},{UUIDS[1]}"}, "--nproc-per-node=2"),
        (accelerate(8), {}, "--num_processes=4"),
        (accelerate(4, "0,1"), {"CUDA_VISIBLE_DEVICES": "0"}, "--num_processes=2 or --gpu_ids=0,1,2,3"),
        (PlannedRanks("accelerate", 8, "--num_processes=16", "--num_processes=", nodes=2), {}, "--num_processes=8"),
        (PlannedRanks("deepspeed", 8, "--num_gpus=8", "--num_gpus=", devices=ALL), {"CUDA_VISIBLE_DEVICES": "0"}, "--num_gpus=4"),
        (PlannedRanks("srun", 8, "8 tasks of step 7.0", "--ntasks-per-node="), {}, "--ntasks-per-node=4"),
    ],
)
def test_two_ranks_on_one_gpu_may_be_meant(planned: PlannedRanks, environ: dict[str, str], line: str) -> None:
    assert outcomes(planned, node(4), **environ) == [(False, "shared", line)]


@pytest.mark.parametrize(
    ("planned", "environ", "subject", "line"),
    [
        (torchrun(2), {"CUDA_VISIBLE_DEVICES": "0,1,9"}, "list", "CUDA_VISIBLE_DEVICES=0,1"),
        (torchrun(None), {"CUDA_VISIBLE_DEVICES": "0,9"}, "list", "CUDA_VISIBLE_DEVICES=0"),
        (UNKNOWN, {"CUDA_VISIBLE_DEVICES": "0,9"}, "list", "CUDA_VISIBLE_DEVICES=0"),
        (torchrun(2), {"CUDA_VISIBLE_DEVICES": "1,1"}, "list", "CUDA_VISIBLE_DEVICES=1"),
        (torchrun(2), {"CUDA_VISIBLE_DEVICES": "cuda:0"}, "list", "CUDA_VISIBLE_DEVICES=0,1"),
        (torchrun(2), {"CUDA_VISIBLE_DEVICES": "GPU-"}, "list", f"CUDA_VISIBLE_DEVICES={UUIDS[0]},{UUIDS[1]}"),
        (
            PlannedRanks("torchrun", 1, "", "--nproc-per-node="),
            {},
            "idle",
            "--nproc-per-node=gpu for a rank on each, --nproc-per-node=1 if",
        ),
    ],
)
def test_a_doubtful_choice_of_gpus_is_a_warning(planned: PlannedRanks, environ: dict[str, str], subject: str, line: str) -> None:
    ((blocks, about, written),) = outcomes(planned, node(4), **environ)
    assert (blocks, about) == (False, subject)
    assert written.startswith(line)


def test_an_accelerate_that_sees_one_gpu_starts_one_rank() -> None:
    (finding,) = rank_places.findings(accelerate(2, needs_several=True), {}, node(1), CPUS)
    assert finding.reason == (
        "accelerate starts one rank and not 2 (--num_processes=2): without --multi_gpu it starts several for several visible GPUs, and 1"
        " is visible; write --num_processes=1"
    )
    assert outcomes(accelerate(2, needs_several=True), node(2)) == []


@pytest.mark.parametrize("environ", [{"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, {}])
def test_cuda_shows_one_instance_of_mig(environ: dict[str, str]) -> None:
    ((blocks, subject, line),) = outcomes(torchrun(2), node(2, mig=(0,)), **environ)
    assert (blocks, subject) == (False, "shared")
    assert ("nvidia-smi -L" in line) == (not environ)
    assert 'os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(os.environ["LOCAL_RANK"])] in the script' in line
    assert outcomes(torchrun(1), node(2, mig=(0,)), **environ) == []
    assert outcomes(torchrun(2), node(4, mig=(3,))) == [], "instances of a GPU that no rank has"
    ((blocks, _, _),) = outcomes(torchrun(2), node(2, mig=(0,)), CUDA_VISIBLE_DEVICES="0,5")
    assert not blocks, "a number may be that of an instance"
    ((blocks, _, _),) = outcomes(torchrun(None), node(2, mig=(0,)), CUDA_VISIBLE_DEVICES="5")
    assert not blocks


@pytest.mark.parametrize(
    ("planned", "readings", "environ"),
    [
        (torchrun(4), node(4), {}),
        (torchrun(2), node(4), {}),
        (torchrun(None), node(4), {"CUDA_VISIBLE_DEVICES": "2"}),
        (torchrun(0), node(4), {}),
        (UNKNOWN, node(4), {}),
        (accelerate(2, "3,1"), node(4), {"CUDA_VISIBLE_DEVICES": "0"}),
        (torchrun(8), node(0), {"CUDA_VISIBLE_DEVICES": "9"}),
        (torchrun(8), Readings(), {"CUDA_VISIBLE_DEVICES": "9"}),
        (torchrun(8), node(4, named=2), {"CUDA_VISIBLE_DEVICES": "9"}),
        (torchrun(4), node(3, on_bus=4, files=4), {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}),
        (torchrun(4), node(4, lost=2), {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}),
        (torchrun(8), node(4), {"CUDA_VISIBLE_DEVICES": ""}),
        (torchrun(8), node(4), {"CUDA_VISIBLE_DEVICES": "-1"}),
        (torchrun(8), node(4), {"NVIDIA_VISIBLE_DEVICES": "void"}),
        (torchrun(8), node(4), {"NVIDIA_VISIBLE_DEVICES": "none"}),
        (PlannedRanks("srun", 8, "8 tasks of step 7.0", "--ntasks-per-node="), node(4), {"CUDA_VISIBLE_DEVICES": "2"}),
        (PlannedRanks("torchrun", 1, "", "--nproc-per-node="), node(1), {}),
    ],
    ids=[
        *("as many ranks", "fewer", "one for each", "a number of nobody", "nothing known", "accelerate shows others", "no GPU", "no NVML"),
        *(
            "NVML hung",
            "a GPU is lost",
            "a GPU has no name",
            "hidden",
            "hidden by -1",
            "void",
            "none",
            "Slurm bound one to each task",
            "one",
        ),
    ],
)
def test_fitting_or_unknown_ranks_and_gpus_are_not_reported(planned: PlannedRanks, readings: Readings, environ: dict[str, str]) -> None:
    assert outcomes(planned, readings, **environ) == []


@pytest.mark.parametrize(
    ("ranks", "cpus", "line"),
    [
        (4, range(32), "taskset -c 0-63 supervise …; in Slurm --exclusive or more --cpus-per-task"),
        (4, [*range(30), 40], ""),
        (2, range(32), ""),
        (2, range(32, 64), "taskset -c 0-63 supervise …; in Slurm --exclusive or more --cpus-per-task"),
        (4, range(64), ""),
        (4, (), ""),
    ],
)
def test_cpus_that_leave_out_the_numa_node_of_a_gpu_are_named(ranks: int, cpus: list[int] | range, line: str) -> None:
    places = rank_places.findings(torchrun(ranks), {}, node(4), cpus)
    assert [finding.command for finding in places] == [line] * bool(line)
    if places:
        words = ("GPU 2, 3", "32-63", "0-31") if ranks == 4 else ("GPU 0, 1", "0-31", "32-63")
        assert places[0].reason.startswith("{}: their CPUs are {}, and this process may run on {} alone: ".format(*words))
    unlike = Readings([*node(4), Reading("nvml", f"gpu:{UUIDS[0]}", "gpu.identity", {"index": 0, "pci": "0000:00:00.0", "name": "T4"})])
    unordered = rank_places.findings(torchrun(ranks), {}, unlike, cpus)
    assert [finding.command for finding in unordered] == [line] * bool(line and ranks == 4), "which GPUs two ranks have is not known"
    binds = PlannedRanks("torchrun", ranks, "--nproc-per-node=4", "--nproc-per-node=", binds=True)
    assert rank_places.findings(binds, {}, node(4), cpus) == ()


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        ("mlx5_0", "NCCL_IB_HCA=mlx5_0,mlx5_1"),
        ("mlx5_0:1", "NCCL_IB_HCA=mlx5_0,mlx5_1"),
        ("mlx5", ""),
        ("mlx5_0,mlx5_1", ""),
        ("^mlx5_1", ""),
        ("=mlx5_0", ""),
        ("absent", ""),
        ("", ""),
    ],
)
def test_ports_at_another_numa_node_than_the_gpu_are_named(wanted: str, line: str) -> None:
    readings = node(4, ports={"mlx5_0": 0, "mlx5_1": 1})
    places = rank_places.findings(torchrun(4), {"NCCL_IB_HCA": wanted}, readings, CPUS)
    assert [finding.command for finding in places] == [line] * bool(line)
    if places:
        assert places[0].reason.startswith(f"GPU 2, 3: NCCL_IB_HCA={wanted} leaves out the ports beside them (mlx5_1): ")
    alone = node(4, ports={"mlx5_0": 0})
    assert rank_places.findings(torchrun(4), {"NCCL_IB_HCA": "mlx5_0"}, alone, CPUS) == (), "there is none beside them"


def test_an_unreadable_configuration_is_reported() -> None:
    assert outcomes(PlannedRanks("accelerate", 0, problem="my.yaml cannot be read: no"), node(2)) == [(False, "configuration", "")]
    assert outcomes(PlannedRanks("accelerate", 0, problem="my.yaml cannot be read: no"), Readings()) == []
