"""Three nodes in network namespaces whose rendezvous has a list of hosts: the one that serves is lost, for good or for a time."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.machines import EVERY, NODES, PORT, STEPS, Machines
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

    def serving(self, node: int) -> str:
        """Return which host serves, by the value that the acceptor of a node has accepted last."""
        (path,) = (self.place / f"node-{node}" / "state").glob("*/nodes/*/cluster/acceptor.json")
        value = json.loads(path.read_text("utf-8"))["state"]["cell"]["value"]
        return str(json.loads(value)["host"]) if value else ""


def test_the_next_host_serves_when_the_first_is_lost_for_good_and_the_others_train_on(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Listed(supervise, tmp_path, network, steps=2 * STEPS, nnodes="2:3", lease_s=6.0)
    nodes.reached(2 * EVERY + 5)
    assert nodes.serving(1) == network.address(0)
    lost_t = time.time()
    nodes.lose(0)
    for run in nodes.runs[1:]:
        wait_for(lambda run=run: run.attempts() >= 2, "the others to go on", 90, alive=run.alive)
    print(f"ranks started again {time.time() - lost_t:.1f} s after the loss")  # noqa: T201  beside the times in the journal
    assert [run.exit_code(300) for run in nodes.runs[1:]] == [0, 0]
    assert nodes.serving(1) == nodes.serving(2) in {network.address(1), network.address(2)}
    assert len({line for run in nodes.runs[1:] for line in run.stderr.splitlines() if "incident 1" in line and "is lost" in line}) == 1
    for run in nodes.runs[1:]:
        run.wait_for_nothing_left()


def test_a_host_that_is_cut_off_serves_no_longer_and_is_taken_in_when_it_is_back(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Listed(supervise, tmp_path, network, steps=8 * STEPS, nnodes="2:3", lease_s=6.0)
    nodes.reached(2 * EVERY)
    network.cut(0)
    time.sleep(60.0)
    network.mend(0)
    nodes.end_well(same_world=False)
    assert nodes.serving(1) != network.address(0)


def test_a_host_that_loses_its_power_and_comes_back_is_taken_in_where_all_are_needed(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Listed(supervise, tmp_path, network)
    nodes.reached(2 * EVERY + 5)
    nodes.lose(0)
    time.sleep(15.0)
    nodes.runs[0] = nodes.start(0)
    nodes.end_well()
