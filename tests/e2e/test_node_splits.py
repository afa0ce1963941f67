"""Nodes in network namespaces that a split parts into two sides, or of which one is not heard, or does not hear.

At most one side acts on a decision; when all reach each other again, they train in one epoch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.machines import EVERY, STEPS, Machines, decisions_of, events_of, saw
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.network import Network
    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]


def gathered(run: Supervised) -> list[dict[str, Any]]:
    """Return the epochs of a node, in their order."""
    return [event.data for event in events_of(run) if event.event == "NodesGathered"]


def trains_again(run: Supervised) -> bool:
    """Return whether ranks of a second attempt run."""
    return run.attempts() >= 2


@pytest.mark.parametrize("network", [4], indirect=True)
def test_a_split_of_two_and_two_where_all_four_are_needed_has_nobody_train_until_it_is_healed(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Machines(supervise, tmp_path, network)
    nodes.reached(2 * EVERY + 5)
    network.split([2, 3])
    for run in nodes.runs[:2]:
        wait_for(lambda run=run: saw(run, "DecisionMade"), "the side with the coordinator to decide", 90, alive=run.alive)
    for run in nodes.runs[2:]:
        wait_for(lambda run=run: saw(run, "CoordinatorFellSilent"), "the other side to miss the coordinator", 90, alive=run.alive)
    assert [decisions_of(run) for run in nodes.runs[2:]] == [{}, {}], "nothing is decided without the coordinator"
    assert [run.attempts() for run in nodes.runs] == [1] * 4
    network.heal([2, 3])
    nodes.end_well()
    assert [run.attempts() for run in nodes.runs] == [2] * 4
    assert len(nodes.cards()) == 1, nodes.cards()


@pytest.mark.parametrize("network", [4], indirect=True)
def test_in_an_even_split_the_side_with_the_coordinator_trains_on(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Machines(supervise, tmp_path, network, nnodes="2:4", steps=8 * STEPS)
    nodes.reached(2 * EVERY + 5)
    network.split([2, 3])
    for run in nodes.runs[:2]:
        wait_for(lambda run=run: trains_again(run), "the side with the coordinator to continue", 120, alive=run.alive)
    for run in nodes.runs[2:]:
        wait_for(lambda run=run: saw(run, "CoordinatorFellSilent"), "the other side to miss the coordinator", 90, alive=run.alive)
    assert [decisions_of(run) for run in nodes.runs[2:]] == [{}, {}], "nothing is decided without the coordinator"
    assert [run.attempts() for run in nodes.runs[2:]] == [1, 1]
    network.heal([2, 3])
    nodes.end_well(same_world=False)
    assert {len(gathered(run)[-1]["members"]) for run in nodes.runs} == {4}, "they ended in one epoch"


@pytest.mark.parametrize("network", [2], indirect=True)
@pytest.mark.parametrize(("node", "way"), [(1, "does not hear"), (0, "is not heard")], ids=["a node", "the coordinator"])
def test_a_link_that_is_cut_in_one_direction_is_a_link_that_is_cut(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network, node: int, way: str
) -> None:
    nodes = Machines(supervise, tmp_path, network)
    nodes.reached(2 * EVERY + 5)
    others = [other for other in range(nodes.count) if other != node]
    ways = [(node, other) if way == "is not heard" else (other, node) for other in others]
    for sender, receiver in ways:
        network.lose_way(sender, receiver)
    for run in nodes.runs:
        seen = lambda run=run: saw(run, "CoordinatorFellSilent") or saw(run, "AttemptEndedByPeer") or saw(run, "DecisionMade")  # noqa: E731
        wait_for(seen, "every node to notice", 90, alive=run.alive)
    time.sleep(20.0)  # what a node does that is cut off, it does meanwhile
    for sender, receiver in ways:
        network.find_way(sender, receiver)
    nodes.end_well()
    assert len(nodes.cards()) == 1, nodes.cards()
