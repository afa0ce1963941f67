"""Arrays, heterogeneous jobs, the two kinds of a notice, and a drained node, on a real Slurm of two nodes."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.slurm.test_batch_script import JOB, OPTIONS, TRAIN, WHOLE, output, printed, steps
from tests.slurm.test_several_nodes import exit_codes, on_its_node, on_nodes, preempt, saved
from tests.support.waiting import wait_for, words_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm.conftest import SlurmCluster

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]

ALONE = ["torchrun", "--standalone", "--nproc-per-node=1", JOB]


def array(slurm: SlurmCluster, place: Path, *words: str) -> str:
    """Submit an array of two tasks, one for each node. Each trains in a directory of its own; they share the state directory."""
    options = [*OPTIONS[:-1], str(place / "state")]
    text = printed(place, *WHOLE, "--sbatch", "array=0-1", *options, "--", *ALONE, *words)
    text = text.replace("\nsrun", "\nmkdir -p task-$SLURM_ARRAY_TASK_ID && cd task-$SLURM_ARRAY_TASK_ID\nsrun", 1)
    return slurm.submit(on_its_node(slurm, place, text), place)


@on_nodes([2])
def test_a_preempted_task_of_an_array_comes_back_alone_and_resumes_where_it_saved(slurm: SlurmCluster, tmp_path: Path) -> None:
    number = array(slurm, tmp_path, "--steps", "100000")
    for task in (0, 1):
        wait_for(lambda task=task: steps(tmp_path / f"task-{task}") > 20, "steps of both tasks", 180)  # type: ignore[misc]
    node = slurm.job(f"{number}_0")["NodeList"]
    other = slurm.submit("#!/bin/bash\ntrue\n", tmp_path, "--partition=high", "--exclusive", f"--nodelist={node}")
    slurm.wait_for_state(other, "COMPLETED")
    back = slurm.wait_for_state(f"{number}_0", "PENDING")
    beside = slurm.job(f"{number}_1")
    assert (back["Restarts"], beside["Restarts"], beside["JobState"]) == ("1", "0", "RUNNING")
    slurm.start_now(f"{number}_0")
    started = wait_for(lambda: len(rows := words_of(tmp_path / "task-0" / "started")) == 2 and rows, "its second start", 180)
    ((_, step),) = words_of(tmp_path / "task-0" / "told")
    assert started == [["0", "0"], ["0", step]]
    assert len(words_of(tmp_path / "task-1" / "started")) == 1
    assert sorted(path.name for path in (tmp_path / "state").glob("slurm-*")) == [f"slurm-{number}_0", f"slurm-{number}_1"]
    assert "continues with run" in (tmp_path / f"job-0.sh-{number}_0.out").read_text()
    slurm.run("scancel", number)


@on_nodes([2])
def test_a_node_that_is_unfit_for_one_task_of_an_array_is_used_by_none(slurm: SlurmCluster, tmp_path: Path) -> None:
    """The task that begins there comes back on another node; the other task is left alone."""
    exclude = ["supervise", "nodes", "exclude", "node-1", "--why", "its disk fails", "--state-dir", str(tmp_path / "state")]
    (tmp_path / "state").mkdir()
    slurm.run(*exclude, cwd=tmp_path)
    number = array(slurm, tmp_path, "--steps", "200")
    wait_for(lambda: "ExcNodeList=node-1" in slurm.run("scontrol", "-o", "show", "job", number), "a node to be excluded", 120)
    records = {task: slurm.job(f"{number}_{task}") for task in (0, 1)}
    ((task, moved),) = [(task, record) for task, record in records.items() if record["ExcNodeList"] == "node-1"]
    assert (moved["Restarts"], records[1 - task]["Restarts"], records[1 - task]["ExcNodeList"]) == ("1", "0", "(null)")
    assert "this node is excluded since" in (tmp_path / f"job-0.sh-{number}_{task}.out").read_text()
    slurm.wait_for_state(f"{number}_{1 - task}", "COMPLETED", 180)
    slurm.start_now(f"{number}_{task}")
    assert slurm.wait_for_state(f"{number}_{task}", "COMPLETED", 180)["NodeList"] == "node-0"
    assert steps(tmp_path / f"task-{task}") == 200


@on_nodes([3])
def test_a_job_of_two_nodes_that_gets_an_excluded_one_leaves_it_at_once_and_trains_on_others(slurm: SlurmCluster, tmp_path: Path) -> None:
    slurm.run("supervise", "nodes", "exclude", "node-1", "--state-dir", "state", cwd=tmp_path)
    train = ["torchrun", "--nproc-per-node=1", JOB, "--steps", "100"]
    text = printed(tmp_path, "--nodes", "2", *WHOLE, *OPTIONS, "--", *train)
    number = slurm.submit(on_its_node(slurm, tmp_path, text), tmp_path)  # Slurm begins with the first two
    wait_for(lambda: slurm.job(number)["ExcNodeList"] == "node-1", "the requeue", 120)
    assert output(tmp_path, number).count("node that the job cannot begin without is excluded since") == 1
    slurm.wait_for_state(number, "PENDING")
    slurm.start_now(number)
    assert slurm.wait_for_state(number, "COMPLETED", 180)["NodeList"] == "node-[0,2]"
    assert exit_codes(tmp_path) == [[0], [], [0]]


@pytest.mark.parametrize("backend", ["c10d", "static"])
@on_nodes([3])
def test_a_step_over_two_components_of_a_job_is_one_training_that_comes_back_whole(
    slurm: SlurmCluster, tmp_path: Path, backend: str
) -> None:
    """The first component has the node with the later name: node 0 is node-1. Slurm keeps each component from the node of the other."""
    options = ["--sbatch", "nodelist=node-1", *OPTIONS]
    train = ["torchrun", "--nproc-per-node=1", f"--rdzv-backend={backend}", JOB, "--steps", "400"]
    text = printed(tmp_path, *WHOLE, *options, "--", *train)
    text = text.replace("\n\n", "\n#SBATCH hetjob\n#SBATCH --nodes=1 --nodelist=node-0 --exclusive --partition=low --requeue\n\n", 1)
    text = text.replace("\nsrun ", "\nsrun --het-group=0,1 ", 1)
    number = slurm.submit(on_its_node(slurm, tmp_path, text), tmp_path)
    wait_for(lambda: steps(tmp_path) > 20, "steps", 180)
    head = {"c10d": "--rdzv-endpoint=node-1:", "static": "--master-addr=node-1 "}[backend]
    assert output(tmp_path, number).count("of 2: torchrun gets --nnodes=2 ") == output(tmp_path, number).count(head) == 2
    slurm.run("supervise", "nodes", "exclude", "node-2", "--state-dir", "state", cwd=tmp_path)
    preempt(slurm, tmp_path, 3)
    step = saved(tmp_path)
    wait_for(lambda: f"job {number} is requeued without node-2" in output(tmp_path, number), "the requeue", 120)
    records = slurm.run("scontrol", "-o", "show", "job", number).splitlines()
    assert [re.findall(r"Restarts=(\d)|ExcNodeList=(\S+)", record) for record in records] == [
        [("1", ""), ("", f"node-{other},node-2")] for other in (0, 1)
    ]
    slurm.start_now(number)
    slurm.wait_for_state(number, "COMPLETED", 240)
    assert [int(row[1]) for row in words_of(tmp_path / "started")] == [0, 0, step, step]
    assert exit_codes(tmp_path) == [[75, 0], [75, 0]]


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ("USR1@45", "supervise: a notice comes 45 to 105 s before the time limit (--signal=USR1@45)"),
        ("B:USR1@45", "warning: --signal=B:USR1@45: the notice comes to the batch script alone; it has no trap for USR1"),
    ],
)
def test_the_start_tells_whether_a_notice_will_come(slurm: SlurmCluster, tmp_path: Path, asked: str, line: str) -> None:
    text = printed(tmp_path, *WHOLE, "--sbatch", "signal=USR1@45", "--sbatch", "time=60", "--", "sleep", "1000")
    number = slurm.submit(text.replace("--signal=USR1@45", f"--signal={asked}"), tmp_path)
    wait_for(lambda: list(tmp_path.glob("*.out")) and line in output(tmp_path, number), "the line", 60)
    slurm.run("scancel", number)


def test_a_notice_to_the_batch_script_comes_to_the_supervise_that_took_its_place(slurm: SlurmCluster, tmp_path: Path) -> None:
    text = printed(tmp_path, *WHOLE, "--sbatch", "time=2", "--notice-s", "45", *OPTIONS, "--", *TRAIN)
    text = text.replace("--signal=USR1@45", "--signal=B:USR1@45")
    begin, _, rest = text.partition("\nsrun ")
    command = rest.partition("    supervise ")[2].partition("\ncode=")[0]
    number = slurm.submit(f"{begin}\nexec supervise {command}\n", tmp_path)
    failed = slurm.wait_for_state(number, "FAILED", 240)
    assert failed["ExitCode"] == "75:0"
    text = output(tmp_path, number)
    assert "a notice comes 45 to 105 s before the time limit (--signal=B:USR1@45)" in text
    assert "the requested checkpoint is saved" in text
    assert len({step for _, step in words_of(tmp_path / "told")}) == 1


#: Slurm's own, as somebody without an operator's rights calls it: who runs these tests may have all rights.
AS_NOBODY = '#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/scontrol "$@"\n'


@on_nodes([2])
def test_a_node_is_drained_with_its_reason_for_an_operator_and_for_nobody_else(slurm: SlurmCluster, tmp_path: Path) -> None:
    def exclude(path: str) -> str:
        words = ["supervise", "nodes", "exclude", "node-1", "--why", "its disk fails", "--drain", "--state-dir", str(tmp_path)]
        environ = {**slurm.environ, "PATH": path}
        done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)  # noqa: S603
        assert "excluded from the next start of a job on: node-1" in done.stdout
        return done.stderr

    (tmp_path / "scontrol").write_text(AS_NOBODY)
    (tmp_path / "scontrol").chmod(0o755)
    refused = exclude(f"{tmp_path}:{slurm.environ['PATH']}")
    assert "Slurm does not drain node-1: slurm_update error: Invalid user id; ask an operator for" in refused
    assert slurm.run("sinfo", "-h", "-R") == ""
    assert "Slurm drains node-1 (supervise: its disk fails)" in exclude(slurm.environ["PATH"])
    assert "Reason=supervise: its disk fails [root@" in slurm.run("scontrol", "show", "node", "node-1")
    slurm.run("scontrol", "update", "NodeName=node-1", "State=RESUME")
    assert slurm.run("sinfo", "-h", "-R") == ""
