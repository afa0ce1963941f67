"""torch's dynamic rounds with real stores and torch's own handlers: who is waited for, and for how long."""

from __future__ import annotations

import inspect
import queue
import threading
from datetime import datetime, timedelta, tzinfo
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from supervisor.agent import dynamic_rounds
from tests.agent.stores import another_client
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed import Store

DEADLINE_S = 60.0
SET = threading.local()


class SetClock(datetime):
    """A clock that is set differently in each thread."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        """See datetime."""
        return datetime.now(tz) - getattr(SET, "behind", timedelta())


@pytest.fixture
def as_the_agent_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


#: Those of the present test.
NODES: list[DynamicNode] = []


@pytest.fixture(autouse=True)
def no_node_outlives_its_store(store: Store) -> Iterator[Store]:
    """Torch's handler beats in a thread of its own, for ever: without its store it writes warnings into the output of later tests."""
    NODES.clear()
    yield store
    for node in NODES:
        node.handler.shutdown()
    threads = [thread for node in NODES for thread in node.threads]
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads)


class DynamicNode:
    """A node in torch's own dynamic rendezvous, of 2 to `most` nodes, that would wait ten minutes for more, and for one that is dead."""

    def __init__(self, store: Store, *, join_s: float = 600.0, last_call_s: float = 600.0, most: int = 3) -> None:
        client = another_client(store)
        timeout = dynamic_rendezvous.RendezvousTimeout(join=timedelta(seconds=join_s), last_call=timedelta(seconds=last_call_s))
        backend = C10dRendezvousBackend(client, "run")
        make = dynamic_rendezvous.DynamicRendezvousHandler.from_backend
        more = {"keep_alive_max_attempt": 120} if "keep_alive_max_attempt" in inspect.signature(make).parameters else {}  # not in torch 2.6
        self.handler = make("run", client, backend, 2, most, timeout=timeout, **more)  # type: ignore[arg-type]
        self.missing: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()
        listener = SimpleNamespace(nodes_missing=lambda count, within_s: self.missing.put((count, within_s)))
        ops = dynamic_rounds.RoundOps.of(self.handler, dynamic_rounds.MissingNodes(listener))  # type: ignore[arg-type]  # nothing else is asked
        assert ops is not None
        self.ops = ops
        self.outcomes: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []
        NODES.append(self)

    def meets(self, returning: int = 0, *, joining: int = 0, least_nodes: int = 0, behind: timedelta = timedelta()) -> None:
        """Go to the next round, with a clock that is behind; its number of nodes is in `outcomes`."""
        self.ops.returning, self.ops.joining, self.ops.least_nodes = returning, joining, least_nodes
        self.threads.append(threading.Thread(target=self._meet, args=(behind,), daemon=True))
        self.threads[-1].start()

    def has_spare(self) -> bool:
        """Whether torch knows of a node beyond its greatest number."""
        holder = self.handler._state_holder  # noqa: SLF001  nothing else shows it
        holder.sync()
        return bool(holder.state.redundancy_list)

    def _meet(self, behind: timedelta) -> None:
        SET.behind = behind
        try:
            self.outcomes.put(self.handler.next_rendezvous().world_size)
        except Exception as error:  # noqa: BLE001  for the test
            self.outcomes.put(error)


@pytest.mark.usefixtures("as_the_agent_sets_it")
def test_the_round_waits_neither_for_a_lost_node_nor_for_more_than_expected(store: Store) -> None:
    nodes = [DynamicNode(store) for _ in range(3)]
    for node in nodes:
        node.meets()
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in nodes] == [3, 3, 3]
    for node in nodes[:2]:  # the third is gone, and torch does not know it
        node.meets(returning=2)
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in nodes[:2]] == [2, 2]


@pytest.mark.usefixtures("as_the_agent_sets_it")
def test_a_node_waits_for_the_end_of_a_round_longer_than_it_waits_for_others_to_join(store: Store) -> None:
    nodes = [DynamicNode(store) for _ in range(2)]
    for node in nodes:
        node.meets(returning=2)
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in nodes] == [2, 2]
    late = DynamicNode(store, join_s=2.5)
    late.meets()
    with pytest.raises(queue.Empty):
        late.outcomes.get(timeout=4.0)
    for node in nodes:
        node.meets(returning=2, joining=1)
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in (*nodes, late)] == [3, 3, 3]


@pytest.mark.usefixtures("as_the_agent_sets_it")
def test_a_node_below_the_minimum_waits_for_as_long_as_its_supervisor_lets_it_and_reports_who_is_missing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_rounds, "MISSING_S", 0.5)
    first = DynamicNode(store, join_s=1.0)
    first.meets(returning=2)
    assert first.missing.get(timeout=DEADLINE_S) == (1, 1.0)
    with pytest.raises(queue.Empty):
        first.outcomes.get(timeout=3.0)
    second = DynamicNode(store)
    second.meets(returning=2)
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in (first, second)] == [2, 2]
    assert first.missing.get(timeout=DEADLINE_S) == (0, 1.0)
    assert second.missing.empty()


@pytest.mark.usefixtures("as_the_agent_sets_it")
def test_nodes_that_are_enough_for_torch_wait_for_one_more_where_fewer_are_known_not_to_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_rounds, "MISSING_S", 0.2)
    nodes = [DynamicNode(store, last_call_s=0.1) for _ in range(3)]
    for node in nodes[:2]:
        node.meets(returning=2, least_nodes=3)
    assert {nodes[0].missing.get(timeout=DEADLINE_S)[0], nodes[1].missing.get(timeout=DEADLINE_S)[0]} <= {1, 2}
    assert all(node.outcomes.empty() for node in nodes[:2]), "two were enough, and the last call is over"
    nodes[2].meets()
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in nodes] == [3, 3, 3]


@pytest.mark.usefixtures("as_the_agent_sets_it")
def test_nodes_whose_clocks_differ_by_an_hour_meet(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_rendezvous, "datetime", SetClock)
    nodes = [DynamicNode(store) for _ in range(3)]
    for node, hours in zip(nodes, (0, 1, -1), strict=True):
        node.meets(behind=timedelta(hours=hours))
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in nodes] == [3, 3, 3]


@pytest.mark.usefixtures("as_the_agent_sets_it")
def test_a_node_whose_clock_is_ahead_waits_for_those_that_may_still_come_for_as_long_as_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_rendezvous, "datetime", SetClock)
    first, ahead, late = nodes = [DynamicNode(store) for _ in range(3)]
    first.meets()
    ahead.meets(behind=timedelta(hours=-1))
    with pytest.raises(queue.Empty):
        ahead.outcomes.get(timeout=4.0)
    late.meets(behind=timedelta(hours=1))
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in nodes] == [3, 3, 3]


@pytest.mark.usefixtures("as_the_agent_sets_it")
def test_a_round_is_incomplete_without_a_late_node_that_waits(store: Store) -> None:
    first, second, late = nodes = [DynamicNode(store) for _ in range(3)]
    for node in (first, second):
        node.meets(returning=2)
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in (first, second)] == [2, 2]
    late.meets()
    wait_for(lambda: first.handler.num_nodes_waiting() == 1, "a node to wait", DEADLINE_S)
    first.meets(returning=2)
    wait_for(lambda: second.handler.num_nodes_waiting() == 0, "it to come before the second", DEADLINE_S)
    with pytest.raises(queue.Empty):
        first.outcomes.get(timeout=2.0)
    second.meets(returning=2)
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in nodes] == [3, 3, 3]


@pytest.mark.usefixtures("as_the_agent_sets_it")
def test_a_new_agent_returns_in_place_of_an_ended_one(store: Store) -> None:
    first, second = nodes = [DynamicNode(store) for _ in range(2)]
    for node in nodes:
        node.meets(returning=2)
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in nodes] == [2, 2]
    new = DynamicNode(store)
    for node in (first, new):
        node.meets(returning=2)
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in (first, new)] == [2, 2]
    assert second.outcomes.empty()


@pytest.mark.slow
@pytest.mark.usefixtures("as_the_agent_sets_it")
def test_nodes_take_part_in_groups_that_hold_whole_replicas_and_the_others_wait_as_spares(store: Store) -> None:
    nodes = [DynamicNode(store, most=5) for _ in range(5)]
    for node in nodes:
        node.ops.node_group = 2
    for node in nodes[:4]:
        node.meets()
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in nodes[:4]] == [4, 4, 4, 4], "of 2 to 5 nodes 4 are all that fit"
    nodes[4].meets()
    wait_for(nodes[0].has_spare, "the fifth waits", DEADLINE_S)
    for node in nodes[:3]:  # one of the four is lost, and the spare is there in its place
        node.meets(returning=3)
    assert [node.outcomes.get(timeout=DEADLINE_S) for node in (*nodes[:3], nodes[4])] == [4, 4, 4, 4]
    for node in (nodes[0], nodes[1], nodes[4]):  # another is lost: of three nodes one becomes a spare
        node.meets(returning=3)
    here = [nodes[0], nodes[1], nodes[4]]
    wait_for(lambda: sum(not node.outcomes.empty() for node in here) == 2, "two of them meet", DEADLINE_S)
    assert [node.outcomes.get() for node in here if not node.outcomes.empty()] == [2, 2]
    wait_for(lambda: nodes[0].handler.num_nodes_waiting() == 1, "the third waits", DEADLINE_S)


@pytest.mark.usefixtures("as_the_agent_sets_it")
def test_after_the_last_call_nodes_beyond_whole_groups_wait(store: Store) -> None:
    nodes = [DynamicNode(store, most=4, last_call_s=1.0) for _ in range(3)]
    for node in nodes:
        node.ops.node_group = 2
        node.meets()
    wait_for(lambda: sum(not node.outcomes.empty() for node in nodes) == 2, "two of the three meet", DEADLINE_S)
    assert [node.outcomes.get() for node in nodes if not node.outcomes.empty()] == [2, 2]
