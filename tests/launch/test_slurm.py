"""The meaning of Slurm's variables for a start: torchrun options that they complete, refusals and warnings."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from supervisor.errors import ExitCode, SuperviseError
from supervisor.launch import slurm

if TYPE_CHECKING:
    from pathlib import Path

#: What srun set on the second of two nodes (Slurm 22.05), as far as it is read.
STEP = {
    "SLURM_JOB_ID": "7100",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[08,10]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NODEID": "1",
}
BATCH = {"SLURM_JOB_ID": "7100", "SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "8(x2)"}
ONE_NODE = {"SLURM_STEP_NODELIST": "gpu08", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0"}
RUN = ("python", "-m", "torch.distributed.run")
LISTS = {
    "gpu08": "gpu08",
    "gpu[08,10]": "gpu08 gpu10",
    "gpu[8-11]": "gpu8 gpu9 gpu10 gpu11",
    "gpu[098-101],login,a[1-2]": "gpu098 gpu099 gpu100 gpu101 login a1 a2",
    "r[1-2]n[01-02,7]": "r1n01 r1n02 r1n7 r2n01 r2n02 r2n7",
}


@pytest.mark.parametrize(("text", "names"), [*LISTS.items(), ("", ""), ("gpu[1-", ""), ("gpu[000x111]", ""), ("a,,b", ""), ("a]", "")])
def test_a_list_of_nodes_is_read(text: str, names: str) -> None:
    assert slurm.host_names(text) == tuple(names.split())


@pytest.mark.process
def test_a_host_list_is_read_as_slurm_reads_it(tmp_path: Path) -> None:
    if shutil.which("scontrol") is None:
        pytest.skip("scontrol is not installed (Debian: apt-get install slurm-client)")
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=test\nSlurmctldHost=localhost(127.0.0.1)\nNodeName=localhost\nPartitionName=p Nodes=localhost\n")
    for text in LISTS:
        words = ["scontrol", "show", "hostnames", text]
        done = subprocess.run(words, env={**os.environ, "SLURM_CONF": str(conf)}, capture_output=True, text=True, timeout=120, check=True)  # noqa: S603
        assert slurm.host_names(text) == tuple(done.stdout.split())


MEET = "rdzv-backend=c10d rdzv-endpoint=gpu08:27100 rdzv-id=7100"


@pytest.mark.parametrize(
    ("options", "completed"),
    [
        ("--nproc-per-node=8", f"nnodes=2 {MEET}"),
        ("--nnodes=1:2", MEET),
        ("--nnode 2", MEET),
        ("--rdzv-backend c10d", "nnodes=2 rdzv-endpoint=gpu08:27100 rdzv-id=7100"),
        ("--rdzv_endpoint=other:29400 --nnodes=2", "rdzv-backend=c10d rdzv-id=7100"),
        ("--rdzv-id=x --rdzv-e=other:1 --rdzv-b=c10d", "nnodes=2"),
        ("--rdzv-backend=etcd-v2 --rdzv-endpoint=keys:2379", "nnodes=2 rdzv-id=7100"),
        ("--rdzv-backend=static", "nnodes=2 node-rank=1 master-addr=gpu08 master-port=27100"),
        ("--master_addr=gpu08 --master_port=29500", "nnodes=2 node-rank=1"),
        ("--node-rank=1", "nnodes=2 master-addr=gpu08 master-port=27100"),
        ("--node-rank=1 --rdzv-endpoint=gpu08:1", "nnodes=2"),
    ],
)
def test_options_that_the_user_leaves_out_are_completed(options: str, completed: str) -> None:
    start = slurm.at_start([*RUN, *options.split(), "train.py", "--nnodes=7"], STEP)
    pairs = (word.split("=") for word in completed.split())
    assert start.variables == {f"PET_{name.upper().replace('-', '_')}": value for name, value in pairs}
    assert start.warning == ""
    assert start.line == f"Slurm step 7100.0, node 1 of 2: torchrun gets --{completed.replace(' ', ' --')}"


def test_a_requeued_job_meets_under_another_id() -> None:
    ids = [slurm.at_start([*RUN, "t.py"], {**STEP, "SLURM_RESTART_COUNT": count}).variables["PET_RDZV_ID"] for count in ("", "0", "1", "2")]
    assert ids == ["7100", "7100", "7100.1", "7100.2"]


def test_torchruns_own_variables_are_the_users_word_too() -> None:
    environ = {**STEP, "PET_NNODES": "2", "PET_RDZV_ENDPOINT": "n7:1", "SLURM_JOB_END_TIME": "1795000000"}
    start = slurm.at_start([*RUN, "train.py"], environ)
    assert start.variables == {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": "7100"}
    assert "--rdzv-id=7100; the job's time ends at 2026-11-" in start.line


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        ((*RUN, "train.py"), {}),
        ((*RUN, "train.py"), {**STEP, **ONE_NODE}),
        (("python", "train.py"), STEP),
        ((*RUN, "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a:1", "--rdzv-id=x", "train.py"), STEP),
    ],
    ids=["elsewhere", "one-node", "plain", "all-given"],
)
def test_complete_options_are_left_alone(command: tuple[str, ...], environ: dict[str, str]) -> None:
    assert slurm.at_start(command, environ) == slurm.SlurmStart({})


@pytest.mark.parametrize("special", [None, "4294967290", "4294967291", "4294967292"], ids=["batch", "salloc", "batch-step", "ssh"])
def test_a_start_outside_of_srun_is_warned_of_and_completes_nothing(special: str | None) -> None:
    environ = BATCH if special is None else {**STEP, "SLURM_STEP_ID": special}
    start = slurm.at_start([*RUN, "train.py"], environ)
    assert "Slurm job 7100 runs this outside of srun" in start.warning
    assert "srun supervise" in start.warning
    assert start.variables == {}
    slurm.require_one_task([*RUN, "train.py"], environ)


@pytest.mark.parametrize(
    ("options", "environ", "words"),
    [
        ("--standalone", {}, "step 7100.0 has 2 nodes, and by its options torchrun runs on one"),
        ("", {"PET_STANDALONE": "1"}, "torchrun runs on one"),
        ("--nnodes=1", {}, "torchrun runs on one"),
        ("", {"SLURM_STEP_NODELIST": "gpu[8"}, "cannot be read from 'gpu[8': give torchrun --rdzv-endpoint"),
        ("--rdzv-endpoint=n:1", {"SLURM_STEP_NODELIST": "gpu[8"}, ""),
        ("--nnodes=4", {}, "torchrun waits for 4 nodes (--nnodes), and Slurm step 7100.0 has 2"),
        ("--nnodes=3:8", {}, "write `srun --nodes=3 --ntasks-per-node=1 supervise …`"),
        ("--nnodes=2", ONE_NODE, "torchrun waits for 2 nodes (--nnodes), and Slurm step 7100.0 has 1"),
        ("--nnodes=2 --rdzv-endpoint=n:1", ONE_NODE, ""),  # a step for each node
        ("--nnodes=2 --master-addr=n", ONE_NODE, ""),
        ("--nnodes=1:2", ONE_NODE, ""),
        ("--nnodes=2", {"SLURM_STEP_NUM_NODES": "3"}, "torchrun takes 2 nodes (--nnodes), and Slurm step 7100.0 has 3"),
        ("--nnodes=2:3", {"SLURM_STEP_NUM_NODES": "3"}, ""),
    ],
)
def test_options_that_do_not_fit_the_step_are_warned_of(options: str, environ: dict[str, str], words: str) -> None:
    start = slurm.at_start([*RUN, *options.split(), "train.py"], {**STEP, **environ})
    assert words in start.warning
    assert bool(words) == bool(start.warning)


@pytest.mark.parametrize(
    ("tasks", "on_each", "nodes", "command", "options"),
    [
        ("1", "2", "", ("python", "train.py"), "--ntasks=2"),
        ("2", "4", "2", ("python", "train.py"), "--ntasks=8"),
        ("2", "2", "1", ("python", "train.py"), ""),
        ("2", "1", "2", ("python", "train.py"), ""),
        ("1", "", "1", ("python", "train.py"), ""),
        ("1", "2", "", (*RUN, "train.py"), ""),
    ],
)
def test_fewer_tasks_than_a_script_may_count_on_are_warned_of(
    tasks: str, on_each: str, nodes: str, command: tuple[str, ...], options: str
) -> None:
    environ = {"SLURM_NTASKS": tasks, "SLURM_NTASKS_PER_NODE": on_each, "SLURM_NNODES": nodes}
    warning = slurm.at_start(command, {name: value for name, value in environ.items() if value}).warning
    assert bool(warning) == bool(options)
    assert not warning or (f"Slurm runs {tasks} task" in warning and options in warning)


@pytest.mark.parametrize(
    ("command", "tasks", "planned"),
    [
        (("python", "train.py"), "8", True),
        (("python", "train.py"), "1", False),
        ((*RUN, "t.py"), "8", False),
        (("bash", "run.sh"), "8", False),
    ],
)
def test_a_script_outside_of_srun_that_would_wait_for_the_tasks_of_the_job_is_warned_of(
    command: tuple[str, ...],
    tasks: str,
    planned: bool,  # noqa: FBT001  a parameter
) -> None:
    warning = slurm.at_start(command, {**BATCH, "SLURM_NTASKS": tasks}).warning
    assert (f"Slurm planned {tasks} tasks for the job (SLURM_NTASKS), and outside of srun one runs" in warning) == planned


#: A step over both components of a heterogeneous job (Slurm 22.05): Slurm lists the nodes by name, and counts those of the first first.
COMPONENTS = {
    **STEP,
    "SLURM_HET_SIZE": "2",
    "SLURM_STEP_NODELIST": "gpu[08,10]",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "gpu10",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "gpu08",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_NNODES": "2",
}


def test_in_a_step_over_components_the_nodes_are_counted_as_slurm_does() -> None:
    start = slurm.at_start([*RUN, "--rdzv-backend=static", "train.py"], COMPONENTS)
    assert (start.variables["PET_MASTER_ADDR"], start.variables["PET_NODE_RANK"]) == ("gpu10", "1"), "node 0 is the master's"
    assert slurm.at_start([*RUN, "train.py"], COMPONENTS).variables["PET_RDZV_ENDPOINT"] == "gpu10:27100"
    assert slurm.job_nodes(COMPONENTS) == ("gpu10", "gpu08")
    assert start.line.count("\n") == 0, "it has all nodes"
    unknown = {name: value for name, value in COMPONENTS.items() if "NODELIST_HET" not in name}
    assert slurm.at_start([*RUN, "train.py"], unknown).variables["PET_RDZV_ENDPOINT"] == "gpu08:27100"


def test_a_step_of_one_component_says_so_and_its_figures_are_not_those_of_the_job() -> None:
    start = slurm.at_start(("python", "train.py"), {**COMPONENTS, **ONE_NODE})
    assert start.line == (
        "Slurm step 7100.0 has 1 of the 2 nodes of a heterogeneous job: `srun --het-group=0,1 supervise …` would take all"
    )
    assert start.warning == ""


@pytest.mark.parametrize(("tasks", "here"), [("8(x2)", 8), ("1,3", 3), ("1(x2)", 1), ("4,1", 1), ("", 1)])
def test_one_task_on_a_node_is_demanded(tasks: str, here: int) -> None:
    environ = {**STEP, "SLURM_STEP_TASKS_PER_NODE": tasks}
    if here == 1:
        slurm.require_one_task(("python", "train.py"), environ)
        return
    with pytest.raises(SuperviseError, match=f"step 7100.0 has {here} tasks here") as caught:
        slurm.require_one_task(("python", "train.py"), environ)
    assert caught.value.exit_code == ExitCode.USAGE
    assert f"`srun --ntasks-per-node=1 supervise -- torchrun --nproc-per-node={here} …`" in caught.value.hint


def test_two_steps_of_a_job_and_two_jobs_meet_at_ports_of_their_own() -> None:
    ports = {
        step.port
        for job in ("7100", "7101")
        for number in ("0", "1", "2")
        if (step := slurm.step_of({**STEP, "SLURM_JOB_ID": job, "SLURM_STEP_ID": number})) is not None
    }
    assert len(ports) == 6
    assert all(20_000 <= port < 30_000 for port in ports)
