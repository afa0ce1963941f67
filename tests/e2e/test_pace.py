"""A rank that makes the others wait, in a real training of two ranks: named from outside. tests/observe/pace has ranks that are alike."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.ports import answers, free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

ROOT = Path(__file__).parents[2]
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=2", str(ROOT / "tests" / "jobs" / "uneven.py")]
QUICK = {"_SUPERVISE_TEST_INTERVALS": "0.08"}

#: Steps that take 30 ms, and 150 ms as long as the file `slow` is there.
SLOWED = """
import pathlib, time, torch
parameter = torch.nn.Parameter(torch.zeros(3))
optimizer = torch.optim.SGD([parameter], lr=0.1)
while not pathlib.Path("end").exists():
    time.sleep(0.15 if pathlib.Path("slow").exists() else 0.03)
    parameter.sum().backward()
    optimizer.step()
"""

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_a_rank_that_computes_twice_as_much_is_named_and_the_job_continues(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*TORCHRUN, EXTRA="2", **QUICK)
    wait_for(lambda: '"event":"PaceChanged"' in run.journal(), "the warning", 90, alive=run.alive)
    wait_for(lambda: "pace: rank 1 computes" in run.stderr, "its line", 10, alive=run.alive)
    assert "rank 0 computes" not in run.stderr
    (warning,) = run.status()["warnings"]
    assert warning.startswith("rank 1 computes ")
    (run.place / "end").touch()
    assert run.exit_code(deadline_s=30) == 0
    assert run.status()["incidents"] == 0


def test_steps_that_take_longer_than_they_did_are_reported_and_that_it_is_over(supervise: Callable[..., Supervised]) -> None:
    run = supervise(sys.executable, "-c", SLOWED, _SUPERVISE_TEST_INTERVALS="0.04")
    wait_for(lambda: int(run.status().get("step") or 0) > 450, "a pace of its own", 90, alive=run.alive)  # 14 s of steps
    assert '"event":"PaceChanged"' not in run.journal()
    (run.place / "slow").touch()
    wait_for(lambda: "times as long as it did" in run.stderr, "the warning", 60, alive=run.alive)
    (run.place / "slow").unlink()
    wait_for(lambda: "pace: over: a step takes" in run.stderr, "the end of it", 60, alive=run.alive)
    assert run.status()["warnings"] == []
    (run.place / "end").touch()
    assert run.exit_code(deadline_s=30) == 0


@pytest.mark.timeout(400)
def test_the_slower_of_two_nodes_is_named_once_and_its_recovery_too(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    port, files = free_port(), {"EVEN": str(tmp_path / "even"), "END": str(tmp_path / "end")}
    torchrun = ["torchrun", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=pace", "--nnodes=2"]
    command = [*torchrun, "--nproc-per-node=1", str(ROOT / "tests" / "jobs" / "sleepy_node.py")]

    def start(node: int) -> Supervised:
        return supervise(*command, place=tmp_path / f"node-{node}", _SUPERVISE_TEST_INTERVALS="0.1", **files)

    runs = [start(0)]
    wait_for(lambda: answers(port), "node 0 to serve the rendezvous", 60, alive=runs[0].alive)
    runs.append(start(1))

    def are_alive() -> bool:
        return all(run.alive() for run in runs)

    wait_for(lambda: "pace: node 1 (" in runs[0].stderr, "the warning", 200, alive=are_alive)
    (line,) = (line for line in runs[0].stderr.splitlines() if "pace: node" in line)
    assert "and the others wait for it: rank 1 sleeps" in line, line
    for run in runs:
        (slow,) = json.loads(run.ask("status", "--all-nodes", "--json").stdout)["slow"]
        assert slow.startswith("node 1 (")
    (warning,) = runs[0].status()["warnings"]
    assert warning == slow
    Path(files["EVEN"]).touch()
    wait_for(lambda: "pace: over: node 1 (" in runs[0].stderr, "the end of it", 120, alive=are_alive)
    Path(files["END"]).touch()
    assert [run.exit_code(deadline_s=60) for run in runs] == [0, 0]
    assert "pace:" not in runs[1].stderr, "it is said once"
    (span,) = json.loads(runs[0].ask("report", "--json").stdout)["slow"]
    assert span["text"] == slow
