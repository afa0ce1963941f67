"""How soon a job of three nodes in network namespaces trains again after a failure, a lost host and its return.

Each is measured in RUNS jobs. The figures are printed; `--figures` asserts them strictly, where nothing else runs. In each of them
the ranks import torch, which takes 2 to 3 s on two cores.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.machines import Machines, checkpoints_of, decisions_of, saw
from tests.e2e.test_nodes import DDP
from tests.support.figures import is_within
from tests.support.waiting import wait_for, words_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.network import Network
    from tests.support.supervised import Supervised

#: Jobs for each figure.
RUNS = int(os.environ.get("NODES_RUNS", "1"))
#: The promises.
FAILED_S, VANISHED_S = 8.0, 20.0

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(3600)]


def stepped_again(nodes: Machines, rank: int, since_ns: int) -> float:
    """Return after how many seconds a rank made a step that it had made before; 0 while it has not."""
    reached = 0
    for step, at_ns in ((int(step), int(ns)) for writer, step, ns in words_of(nodes.place / "progress") if writer == str(rank)):
        if step <= reached:
            return (at_ns - since_ns) / 1e9
        reached = step
    return 0.0


def all_step_again(nodes: Machines, ranks: int, since_ns: int) -> float:
    """Await that each rank makes a step of the second attempt; return after how many seconds the last one did."""
    look = lambda: [took for rank in range(ranks) if (took := stepped_again(nodes, rank, since_ns))]  # noqa: E731
    return max(wait_for(lambda: took if len(took := look()) == ranks else [], "all to step again", 120, alive=nodes.runs[0].alive))


def show(name: str, took_s: list[float]) -> None:
    """Print a figure, and the load of the machine under which it was measured."""
    load = " ".join(f"{load:.1f}" for load in os.getloadavg())
    rows = " ".join(f"{took:.1f}" for took in took_s)
    print(f"{name}: median {statistics.median(took_s):.1f} s, {min(took_s):.1f} to {max(took_s):.1f} s ({rows}; load {load})")  # noqa: T201  for people


def test_all_ranks_step_again_within_8_s_of_the_death_of_a_process_on_another_node(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    took_s = []
    for number in range(RUNS):
        nodes = Machines(supervise, tmp_path / f"run-{number}", network, "--step-ms=100", steps=80, script=DDP, hold_at=0)
        (pid,) = nodes.runs[2].rank_pids().values()
        nodes.reached(25)
        killed_ns = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        took_s.append(all_step_again(nodes, 3, killed_ns))
        nodes.end_well()
        assert [list(decisions_of(run)) for run in nodes.runs] == [[1, 2]] * 3, "one decision for the failure, and the end"
        assert len(nodes.cards()) == 1, nodes.cards()
    show("a process died: all step again", took_s)
    assert all(is_within(took, FAILED_S) for took in took_s)


def test_the_others_step_again_within_20_s_of_a_vanished_host_and_it_returns(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    took_s, returned_s = [], []
    for number in range(RUNS):
        job = ("--step-ms=100", "--ask", "--save-every=1000000")
        nodes = Machines(supervise, tmp_path / f"run-{number}", network, *job, steps=300, nnodes="2:3", script=DDP, hold_at=0)
        nodes.reached(10)
        vanished_ns = time.monotonic_ns()
        nodes.vanish(2)
        took_s.append(all_step_again(nodes, 2, vanished_ns))
        network.mend(2)
        back_ns = time.monotonic_ns()
        nodes.runs[2] = nodes.start(2)
        returned_s.append(wait_for(lambda: third_rank_s(nodes, back_ns), "three ranks to train", 120, alive=nodes.runs[0].alive))  # noqa: B023  called here
        nodes.end_well(same_world=False)
        (saved,) = (int(path.stem.removeprefix("step-")) for path in (nodes.place / "ckpt").glob("*.pt"))
        assert {step for run in nodes.runs for rows in checkpoints_of(run).values() for row in rows if row for _, step in [row]} == {saved}
        assert [run.attempts() for run in nodes.runs[:2]] == [3, 3]
        assert [run.status()["incidents"] for run in nodes.runs[:2]] == [1, 1], "that it is taken in is no failure"
        assert all("all have saved" in run.journal() for run in nodes.runs[:2])
        assert any(saw(run, "Saved") for run in nodes.runs[:2])
    show("a host vanished: the others step again", took_s)
    show("a node is back: all step together, from the one save that they were asked for", returned_s)
    assert all(is_within(took, VANISHED_S) for took in took_s)


def third_rank_s(nodes: Machines, since_ns: int) -> float:
    """Return after how many seconds the third rank made a step; 0 while it has not."""
    rows = [int(ns) for writer, _, ns in words_of(nodes.place / "progress") if writer == "2" and int(ns) > since_ns]
    return (rows[0] - since_ns) / 1e9 if rows else 0.0
