"""Nodes of a job in network namespaces of their own: links are cut, machines are lost and come back.

After each fault: one decision and one checkpoint per attempt in all journals, the same card everywhere, nothing left, and the model of a
run in which nothing failed. test_node_pauses.py has a link that is cut for some seconds; test_node_splits.py has links that are cut in
one direction; test_nodes.py has a supervisor that is killed; test_node_times.py has a rank that is killed, and a machine without which
the others train on.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.machines import EVERY, NODES, Machines, checkpoints_of
from tests.support.supervised import processes_with

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.network import Network
    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("network", [2], indirect=True)
def test_a_link_cut_for_longer_loses_the_coordinator_and_all_continue_when_it_is_back(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Machines(supervise, tmp_path, network)
    nodes.reached(2 * EVERY)
    network.cut(0)
    time.sleep(60.0)
    network.mend(0)
    nodes.end_well()
    assert len(nodes.cards()) == 1, nodes.cards()


@pytest.mark.parametrize("network", [2], indirect=True)
def test_the_machine_of_the_coordinator_loses_its_power_and_comes_back(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Machines(supervise, tmp_path, network)
    nodes.reached(2 * EVERY + 5)
    nodes.lose(0)
    time.sleep(15.0)
    nodes.runs[0] = nodes.start(0)
    nodes.end_well()
    assert len(nodes.cards()) == 1, nodes.cards()
    (card,) = nodes.cards()
    assert f"node {os.uname().nodename}:0 is lost" in card


def test_all_nodes_stop_with_75_without_a_coordinator_and_a_requeue_continues_the_job(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Machines(supervise, tmp_path, network, nnodes="2:3", wait_s=30.0)
    nodes.reached(2 * EVERY + 5)
    nodes.lose(0)
    others, lost_t = nodes.runs[1:], time.time()
    assert [run.exit_code(240) for run in others] == [75, 75]
    print(f"all stopped {time.time() - lost_t:.1f} s after the loss")  # noqa: T201  the figure is for people
    for run in others:
        run.wait_for_nothing_left()
    shutil.rmtree(nodes.runs[0].state)  # another machine comes in its place
    nodes.runs = [nodes.start(node) for node in range(NODES)]
    nodes.end_well()
    chosen = [row for rows in checkpoints_of(nodes.runs[0]).values() for row in rows]
    assert chosen
    assert all(step >= 2 * EVERY for _, step in chosen), "the requeue resumed at the newest checkpoint"


@pytest.mark.parametrize("network", [2], indirect=True)
def test_the_agent_of_a_node_is_killed(supervise: Callable[..., Supervised], tmp_path: Path, network: Network) -> None:
    nodes = Machines(supervise, tmp_path, network)
    nodes.reached(2 * EVERY + 5)
    (agent,) = (pid for pid, line in processes_with(nodes.runs[1].mark).items() if "supervisor/agent/__main__.py" in line)
    os.kill(agent, signal.SIGKILL)
    nodes.end_well()
    assert len(nodes.cards()) == 1, nodes.cards()
