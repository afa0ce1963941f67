"""The script of `supervise print slurm` on several nodes of a real Slurm: all nodes end alike, whatever ends the job.

Each node is a slurmd of this host, and a network namespace in which its supervise runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.slurm.test_batch_script import JOB, OPTIONS, output, printed, steps
from tests.support.waiting import wait_for, words_of

if TYPE_CHECKING:
    from tests.slurm.conftest import SlurmCluster

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]
on_nodes = partial(pytest.mark.parametrize, "slurm", indirect=True)

#: The network of a node is its namespace. All nodes are this host, which has one name: so each gets one of its own, which all know.
ON_NODE = """#!/bin/sh
node=${{SLURMD_NODENAME##*-}}
namespace=$(echo {names} | cut -d' ' -f$((node + 1)))
exec nsenter --net=/run/netns/$namespace unshare --uts --mount sh -c '
    mount --bind {hosts} /etc/hosts
    hostname node-'$node'
    exec "$@"' - "$@"
"""


def on_its_node(slurm: SlurmCluster, place: Path, text: str) -> str:
    """Have `supervise` in a batch script run in the network and under the name of its node."""
    assert slurm.network is not None
    names, starter, hosts = slurm.network.names, place / "on-node", place / "hosts"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{slurm.network.address(node)} node-{node}\n" for node in range(len(names))))
    starter.write_text(ON_NODE.format(names=" ".join(names), hosts=hosts))
    starter.chmod(0o755)
    assert "    supervise " in text
    return text.replace("    supervise ", f"    {starter} supervise ", 1)


def submit(slurm: SlurmCluster, place: Path, *words: str, sbatch: tuple[str, ...] = (), nnodes: str = "", nodes: int = 0) -> str:
    """Submit a training on all nodes or some, and await that it makes steps; return the job's number."""
    assert slurm.network is not None
    count = nodes or len(slurm.network.names)
    directives = [word for directive in ("exclusive", "partition=low", *sbatch) for word in ("--sbatch", directive)]
    train = ["torchrun", "--nproc-per-node=1", *([f"--nnodes={nnodes}"] if nnodes else []), JOB]
    text = printed(place, "--nodes", str(count), *directives, *OPTIONS, "--", *train, *words)
    number = slurm.submit(on_its_node(slurm, place, text), place)
    wait_for(lambda: steps(place) > 20, "steps", 180)
    return number


def preempt(slurm: SlurmCluster, place: Path, nodes: int = 2) -> None:
    """Let another job have all nodes for a moment."""
    other = slurm.submit("#!/bin/bash\ntrue\n", place, "--partition=high", "--exclusive", f"--nodes={nodes}")
    slurm.wait_for_state(other, "COMPLETED", 180)


def saved(place: Path, nodes: int = 2) -> int:
    """Return the step that all ranks saved when they were asked to: one, of all."""
    rows = wait_for(lambda: len(lines := words_of(place / "told")) == nodes and lines, "all ranks to save", 60)
    (step,) = {int(step) for _, step in rows}
    assert sorted(int(rank) for rank, _ in rows) == list(range(nodes))
    wait_for((place / "ckpt" / f"step-{step:08d}.pt").exists, "the file", 60)
    return step


def come_back(slurm: SlurmCluster, number: str, restarts: int = 1, without: str = "") -> None:
    """Await that the job was taken back, and let it begin at once. without: a node."""
    waiting = wait_for(lambda: (job := slurm.job(number))["Restarts"] == str(restarts) and job, "the requeue", 180)
    if without:
        slurm.run("scontrol", "update", f"jobid={number}", f"ExcNodeList={without}")
    if waiting["JobState"] == "PENDING":
        slurm.start_now(number)


def supervisor_of(number: str, node: int) -> int:
    """Return the pid of the supervisor of a node."""
    of_node = {f"SLURM_JOB_ID={number}".encode(), f"SLURM_NODEID={node}".encode()}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[1:2] and words[1].endswith(b"/supervise") and of_node <= set((entry / "environ").read_bytes().split(b"\0")):
                return int(entry.name)
    return pytest.fail(f"no supervisor of node {node}")


def exit_codes(place: Path) -> list[list[int]]:
    """Return the exit codes of each node's supervisors, in the order of their ends."""
    codes: list[list[int]] = []
    for node in sorted((place / "state").glob("*/nodes/node-*")):
        rows: list[dict[str, Any]] = []
        for path in sorted(node.glob("journal*.jsonl")):
            rows += [json.loads(line)["rec"] for line in path.read_text().splitlines()]
        codes.append([row["body"]["exit_code"] for row in sorted(rows, key=lambda row: row["t"]) if row["kind"] == "end"])
    return codes


def ends_whole(slurm: SlurmCluster, place: Path, number: str, resumed: int) -> None:
    """Demand that both nodes resume at one step, and the job completes."""
    slurm.wait_for_state(number, "COMPLETED", 240)
    assert [int(step) for _, step in words_of(place / "started")] == [0, 0, resumed, resumed]
    assert output(place, number).count("continues with run") == 2


@on_nodes([2])
def test_a_preempted_job_saves_once_is_requeued_and_resumes_on_both_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    number = submit(slurm, tmp_path, "--steps", "400")
    preempt(slurm, tmp_path)
    step = saved(tmp_path)
    come_back(slurm, number)
    ends_whole(slurm, tmp_path, number, step)
    assert exit_codes(tmp_path) == [[75, 0], [75, 0]]


@on_nodes([2])
def test_a_cancelled_job_saves_once_and_is_not_started_again(slurm: SlurmCluster, tmp_path: Path) -> None:
    number = submit(slurm, tmp_path)
    slurm.run("scancel", number)
    wait_for(lambda: not slurm.run("squeue", "-h").strip(), "its end", 90)
    job = slurm.job(number)
    assert (job["JobState"], job["Restarts"]) == ("CANCELLED", "0")
    saved(tmp_path)


@on_nodes([2])
def test_a_job_requeued_by_a_person_saves_once_and_continues_on_both_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    number = submit(slurm, tmp_path, "--steps", "400")
    slurm.run("scontrol", "requeue", number)
    come_back(slurm, number)
    ends_whole(slurm, tmp_path, number, saved(tmp_path))


@on_nodes([2])
def test_a_job_whose_node_goes_down_saves_once_and_continues_on_both_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    number = submit(slurm, tmp_path, "--steps", "400")
    slurm.run("scontrol", "update", "nodename=node-1", "state=down", "reason=a test")
    come_back(slurm, number)  # once the node's slurmd registers again (ReturnToService=2)
    ends_whole(slurm, tmp_path, number, saved(tmp_path))


@on_nodes([2])
def test_a_notice_before_the_time_limit_has_both_save_once_and_brings_the_job_back(slurm: SlurmCluster, tmp_path: Path) -> None:
    number = submit(slurm, tmp_path, sbatch=("time=2", "signal=USR1@45"))
    come_back(slurm, number)
    saved(tmp_path)
    assert exit_codes(tmp_path) == [[75], [75]]


@on_nodes([3])
def test_an_elastic_job_continues_without_a_lost_node_and_is_requeued_like_any_other(slurm: SlurmCluster, tmp_path: Path) -> None:
    number = submit(slurm, tmp_path, "--steps", "100000", "--save-every=20", nnodes="2:3", sbatch=("no-kill",))
    assert output(tmp_path, number).count("--rdzv-endpoint=node-0:") == 3
    wait_for(lambda: list((tmp_path / "ckpt").glob("*.pt")), "a checkpoint", 60)
    os.kill(supervisor_of(number, 2), signal.SIGKILL)
    wait_for(lambda: len(words_of(tmp_path / "started")) == 5, "both others to start again", 240)
    (resumed,) = {int(step) for _, step in words_of(tmp_path / "started")[3:]}
    assert resumed > 0
    wait_for(lambda: int(words_of(tmp_path / "steps")[-1][1]) > resumed, "steps of two nodes", 120)
    preempt(slurm, tmp_path, 3)
    step = saved(tmp_path, nodes=2)
    come_back(slurm, number)
    wait_for(lambda: len(words_of(tmp_path / "started")) == 8, "all three to start again", 240)
    assert {int(step_text) for _, step_text in words_of(tmp_path / "started")[5:]} == {step}
    slurm.run("scancel", number)


@on_nodes([4])
def test_an_elastic_job_that_is_requeued_to_another_node_and_back_meets_each_time(slurm: SlurmCluster, tmp_path: Path) -> None:
    number = submit(slurm, tmp_path, "--steps", "100000", "--save-every=20", nnodes="2:3", nodes=3)
    step = 0
    for restarts, without in enumerate(["node-2", "node-3"], start=1):
        (tmp_path / "told").unlink(missing_ok=True)
        slurm.run("scontrol", "requeue", number)
        step = saved(tmp_path, nodes=3)
        come_back(slurm, number, restarts, without)
        wait_for(lambda restarts=restarts: len(words_of(tmp_path / "started")) == 3 * (restarts + 1), "all three to start", 240)
        assert {int(step_text) for _, step_text in words_of(tmp_path / "started")[-3:]} == {step}
        assert re.search(rf"--rdzv-endpoint=node-0:\d+ --rdzv-id={number}\.{restarts}\b", output(tmp_path, number))
        wait_for(lambda step=step: int(words_of(tmp_path / "steps")[-1][1]) > step + 5, "steps", 120)
    slurm.run("scancel", number)
