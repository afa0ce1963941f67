"""A node's part by itself."""

from __future__ import annotations

import pytest

from supervisor.cluster import messages as protocol
from supervisor.cluster.model import RESTART, ClusterDecision, ClusterRules, Epoch
from supervisor.cluster.node import NodeMemory, new_node, step


@pytest.mark.parametrize(("me", "live"), [("a", 2), ("c", 0)])
def test_a_node_that_was_lost_does_not_know_how_many_come_to_the_next_meeting(me: str, live: int) -> None:
    """It is none of those that are left: where it counted itself as one of them, the round began without the slowest of them."""
    epoch, decision = Epoch(1, ("a", "b", "c"), "a", "token"), ClusterDecision(RESTART)
    rows = (epoch.row(), ("lost/1/c", "silent for 60 s"), ("decision/1", decision.value()))
    state, _ = step(new_node(NodeMemory(me, epoch, "store"), ClusterRules(nodes=3), 0.0), protocol.StoreOpened(0.0))
    _, outputs = step(state, protocol.FromStore(1.0, protocol.StoreRows("store", "a", 0, 1, rows)))
    assert protocol.ActOn(epoch, decision, live) in outputs
