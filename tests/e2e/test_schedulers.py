"""A job of two nodes that a scheduler starts: `torchrun` without an option for the nodes. Both nodes are this host."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.ports import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

#: Tells the world's size, and which of torchrun's variables a rank sees.
MEETS = """
import os
seen = sorted(name for name in os.environ if name.startswith("PET_"))
print("met", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *seen, flush=True)
"""
HERE = os.uname().nodename.split(".")[0]


def slurm(node: int) -> dict[str, str]:
    """Return what srun sets. The port follows from the job's number."""
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": f"localhost,{HERE}",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_NODEID": str(node),
    }


def trainer(node: int, port: int) -> dict[str, str]:
    """Return what Kubeflow's Trainer, and its PyTorchJob without elasticity, set."""
    return {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": str(node),
        "PET_MASTER_ADDR": "localhost",
        "PET_MASTER_PORT": str(port),
        "MASTER_ADDR": "not-read-by-torchrun",
    }


def elastic(port: int) -> dict[str, str]:
    """Return what Kubeflow's elastic PyTorchJob sets."""
    return {
        "PET_NNODES": "1:2",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"localhost:{port}",
        "PET_RDZV_ID": "job",
        "PET_RDZV_CONF": "last_call_timeout=30",
    }


@pytest.mark.slow  # test_nodes.py and tests/slurm show the parts
@pytest.mark.parametrize("launcher", ["slurm", "trainer", "elastic"])
def test_two_nodes_meet(launcher: str, supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MEETS)
    port = free_port()
    given = [{"slurm": slurm(node), "trainer": trainer(node, port), "elastic": elastic(port)}[launcher] for node in range(2)]
    command = ["torchrun", str(tmp_path / "train.py")]
    runs = [supervise(*command, place=tmp_path / f"node-{node}", **given[node]) for node in range(2)]
    assert [run.exit_code(deadline_s=200) for run in runs] == [0, 0]
    seen = sorted(line for run in runs for line in run.stdout.splitlines() if line.startswith("met "))
    if launcher == "slurm":
        assert seen == ["met 0 of 2", "met 1 of 2"], "what completes torchrun is not for its ranks: they may run a torchrun, too"
        meet = 20_000 + os.getpid() % 10_000
        message = f"node {{}} of 2: torchrun gets --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=localhost:{meet} "
        assert [run.stderr.count(message.format(node)) for node, run in enumerate(runs)] == [1, 1]
        assert all(run.stderr.count("torchrun gets") == 1 for run in runs)
    else:
        assert [" ".join(line.split()[:4]) for line in seen] == ["met 0 of 2", "met 1 of 2"]
        assert all("torchrun gets" not in run.stderr for run in runs)
    started = [next(line for line in run.journal().splitlines() if '"SupervisorStarted"' in line) for run in runs]
    assert all('"nodes":2,' in line for line in started), "known before torch is asked"


#: Its first rank is killed; a later one trains until it is asked to save. Once there is a save, it is done.
PREEMPTED = """
import os, signal, sys, time
from pathlib import Path
from supervisor import worker
if os.environ["SUPERVISE_JOB_ATTEMPT"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
print("attempt", os.environ["SUPERVISE_JOB_ATTEMPT"], flush=True)
step = 0
while not Path("saved").exists():
    time.sleep(0.02)
    step += 1
    worker.heartbeat(step)
    if worker.should_save():
        Path("saved").touch()
        worker.saved()
"""


def run_of(state: Path) -> tuple[list[str], int]:
    """Return the run of each start in a node's journal, and the number of incidents that were opened."""
    records = [json.loads(line)["rec"] for line in (state / "journal.jsonl").read_text().splitlines()]
    opened = sum(1 for record in records if "OpenIncident" in str(record["body"].get("actions")))
    return [record["body"]["run_id"] for record in records if record["kind"] == "run"], opened


def test_a_job_restarted_by_slurm_on_another_node_continues_its_run(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PREEMPTED)
    job = f"slurm-{os.getpid()}"
    given = {**slurm(0), "SLURM_STEP_NODELIST": HERE, "SLURM_STEP_NUM_NODES": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    command, options = ["python", "train.py"], ["--job", job]
    first = supervise(*command, options=options, **given)
    nodes, here = tmp_path / "state" / job / "nodes", os.uname().nodename
    first.wait_for_line("^attempt 2$")
    wait_for(lambda: "SaveOnRequestSeen" in (nodes / here / "journal.jsonl").read_text(), "a rank that asks", 60, alive=first.alive)
    first.signal(signal.SIGTERM)
    assert first.exit_code() == 75
    (nodes / here).rename(nodes / "gpu08")  # as if this had been another host
    again = supervise(*command, options=options, **given, SLURM_RESTART_COUNT="1")
    assert again.exit_code() == 0
    assert "requeued by Slurm: the journal came along from gpu08" in again.stderr
    assert "attempt 3" in again.stdout, "the attempts are counted on"
    runs, opened = run_of(nodes / here)
    assert (len(runs), len(set(runs)), opened) == (2, 1, 1)
    assert len(run_of(nodes / "gpu08")[0]) == 1, "what stays behind is left as it was"


#: Answers nothing, and keeps its pid.
HANGS = "#!/bin/sh\necho $$ >> {place}/scontrol.pid\nexec sleep 1000\n"
#: The batch script of a job whose notice only that script would hear.
TELLS = """#!/bin/sh
case $1 in
    -o) echo "JobId=7100 TimeLimit=01:00:00" ;;
    write) printf '#!/bin/bash\\n#SBATCH --signal=B:USR1@90\\nsrun x\\n' ;;
esac
"""


def with_scontrol(place: Path, text: str) -> dict[str, str]:
    """Put a scontrol in `place`; return the environment of a job that finds it first."""
    (place / "scontrol").write_text(text.format(place=place))
    (place / "scontrol").chmod(0o755)
    return {**slurm(0), "SLURM_STEP_NUM_NODES": "1", "PATH": f"{place}:{os.environ['PATH']}"}


@pytest.mark.slow
def test_a_controller_that_does_not_answer_holds_no_start_back_and_no_end(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = supervise("sh", "-c", f"until [ -s {tmp_path}/scontrol.pid ]; do sleep 0.05; done", **with_scontrol(tmp_path, HANGS))
    assert run.exit_code() == 0
    pids = [int(pid) for pid in (tmp_path / "scontrol.pid").read_text().split()]
    assert len(pids) == 1, "the second question follows the answer to the first"
    wait_for(lambda: not Path(f"/proc/{pids[0]}").exists(), "the end of scontrol with us", 30)


@pytest.mark.slow
def test_a_notice_to_the_batch_script_alone_is_reported_at_the_start(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = supervise("sleep", "1000", **with_scontrol(tmp_path, TELLS.replace("{", "{{").replace("}", "}}")))
    run.wait_for_line(r"warning: --signal=B:USR1@90: the notice comes to the batch script alone; .* write --signal=USR1@90")
    run.signal(signal.SIGINT)
    run.exit_code()
