"""Three nodes in network namespaces whose rendezvous has a list of hosts: the one that serves is lost, for good or for a time."""

from __future__ import annotations

import functools
import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.machines import EVERY, NODES, PORT, STEPS, Machines
from tests.e2e.test_node_batch import REHEARSAL
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.conftest import Supervised
    from tests.support.network import Network

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]


class Listed(Machines):
    """The nodes, each of which is a host of the list."""

    def rendezvous(self, node: int) -> list[str]:
        """As there."""
        del node
        return [f"--rdzv-endpoint={','.join(self.network.address(host) for host in range(NODES))}:{PORT}"]

    def serving(self, asked: int = 1) -> int:
        """Return which node serves, by the value that the acceptor of a node has accepted last."""
        (path,) = (self.place / f"node-{asked}" / "state").glob("*/nodes/*/cluster/acceptor.json")
        record = json.loads(json.loads(path.read_text("utf-8"))["state"]["cell"]["value"])
        return [self.network.address(node) for node in range(NODES)].index(record["host"])


def test_another_host_serves_when_the_one_that_did_is_lost_for_good_and_the_others_train_on(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Listed(supervise, tmp_path, network, nnodes="2:3")
    nodes.reached(2 * EVERY + 5)
    host = nodes.serving()  # the first, unless it was late
    others = [run for node, run in enumerate(nodes.runs) if node != host]
    before, lost_t = [run.attempts() for run in others], time.time()
    nodes.lose(host)
    for run, attempts in zip(others, before, strict=True):
        wait_for(lambda run=run, attempts=attempts: run.attempts() > attempts, "the others to go on", 120, alive=run.alive)
    print(f"ranks started again {time.time() - lost_t:.1f} s after the loss")  # noqa: T201  beside the times in the journal
    assert [run.exit_code(400) for run in others] == [0, 0]
    assert nodes.serving(next(node for node in range(NODES) if node != host)) != host
    for run in others:
        run.wait_for_nothing_left()


def test_a_host_that_is_cut_off_serves_no_longer_and_is_taken_in_when_it_is_back(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Listed(supervise, tmp_path, network, steps=8 * STEPS, nnodes="2:3", lease_s=6.0)
    nodes.reached(2 * EVERY)
    host = nodes.serving()
    network.cut(host)
    time.sleep(60.0)
    assert nodes.serving((host + 1) % NODES) != host
    network.mend(host)
    nodes.end_well(same_world=False)


def test_a_host_that_loses_its_power_and_comes_back_is_taken_in_where_all_are_needed(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Listed(supervise, tmp_path, network)
    nodes.reached(2 * EVERY + 5)
    host = nodes.serving()
    nodes.lose(host)
    time.sleep(15.0)
    nodes.runs[host] = nodes.start(host)
    nodes.end_well()


def test_another_host_serves_where_the_one_that_does_fails_the_node_check_and_leaves(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    (tmp_path / "sitecustomize.py").write_text(REHEARSAL.replace("RANK", "0"))  # rank 0 of the check is where the store is served
    start = functools.partial(supervise, SUPERVISE_HEALTH_CHECK_NODES="start", PYTHONPATH=str(tmp_path))
    nodes = Listed(start, tmp_path, network, nnodes="2:3")
    is_over = lambda run: not run.alive() and run.exit_code() == 75  # noqa: E731
    bad = wait_for(lambda: next((run for run in nodes.runs if is_over(run)), None), "the host to stop", 200)
    assert "the node is excluded, and the others go on without it" in " ".join(bad.stderr.split())
    others = [run for run in nodes.runs if run is not bad]
    assert [run.exit_code(300) for run in others] == [0, 0]
    assert [run.attempts() for run in others] == [1, 1]
    for run in nodes.runs:
        run.wait_for_nothing_left()
