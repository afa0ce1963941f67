"""Ports and static rounds over a real store of torch's."""
# ruff: noqa: D102  the methods of a handler are torch's

from __future__ import annotations

import functools
import queue
import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from torch.distributed import FileStore, PrefixStore, TCPStore  # type: ignore[attr-defined]  # exported where the build has them
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from supervisor.agent import dynamic_rounds, rendezvous
from tests.agent.stores import another_client

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed import Store

DEADLINE_S = 60.0
FIRST, SECOND = (rendezvous.MetNode(index, 2, f"10.0.0.{index}") for index in (0, 1))


def never() -> bool:
    return False


def waits(store: Store, keys: list[str], subject: str) -> None:
    """Wait for other nodes of a static round, and report nothing."""
    rendezvous.wait_keys(store, keys, never, subject)


def test_a_free_port_lies_outside_the_ephemeral_range(tmp_path: Path) -> None:
    ephemeral = tmp_path / "range"
    ephemeral.write_text("10000\t65000\n")
    assert all(65000 < rendezvous.free_port(ephemeral) < 65536 for _ in range(20))
    ephemeral.write_text("1024 65535")
    assert rendezvous.free_port(ephemeral) > 1023
    assert not 32768 <= rendezvous.free_port(tmp_path / "absent") <= 60999


def test_a_bound_port_is_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        here = taken.getsockname()[1]
        (tmp_path / "range").write_text("1 2")
        monkeypatch.setattr(rendezvous, "LOWEST_PORT", here)
        monkeypatch.setattr(rendezvous.random.SystemRandom, "sample", lambda _self, ports, _n: ports[:2])  # that one and the next
        assert rendezvous.free_port(tmp_path / "range") != here


def test_the_port_is_handed_over_and_a_stop_ends_the_wait(store: Store) -> None:
    with pytest.raises(rendezvous.AttemptCancelled):
        rendezvous.hand_over(store, None, lambda: True)
    served = rendezvous.serve_store("localhost")
    mine = rendezvous.hand_over(store, served, never)
    assert mine.port == served.port
    assert rendezvous.hand_over(store, None, never) == mine
    assert rendezvous.hand_over(rendezvous.static_store(store, 2), served, never).round == mine.round + 1


def test_a_peer_that_never_comes_is_waited_for_within_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "PEER_TIMEOUT_S", 0.1)
    with pytest.raises(TimeoutError, match="the port from the node of rank 0"):
        rendezvous.hand_over(store, None, never)


class Meeting(RendezvousHandler):
    """A user's rendezvous, that counts how often its nodes meet."""

    def __init__(self, store: Store, nodes: int) -> None:
        self._info = RendezvousInfo(store, 0, nodes, RendezvousStoreInfo("localhost", 0))
        self.met = 0

    def get_backend(self) -> str:
        return "theirs"

    def get_run_id(self) -> str:
        return "run"

    def next_rendezvous(self) -> RendezvousInfo:
        self.met += 1
        return self._info

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True


@pytest.mark.parametrize(("nodes", "meetings"), [(1, 1), (2, 3)])
def test_a_node_alone_meets_nobody_again_and_has_a_new_store_each_time(store: Store, nodes: int, meetings: int) -> None:
    torch_meeting = Meeting(store, nodes)
    rounds = rendezvous.RoundRendezvous(torch_meeting, SimpleNamespace(cancelled=never), nodes=nodes)  # type: ignore[arg-type]  # nothing else is asked
    ports = []
    for _ in range(3):
        rounds.next_rendezvous()
        port = rounds.handover.port
        client = TCPStore("localhost", port, None, False, wait_for_workers=False)  # noqa: FBT003  positional in every version
        assert client.add("key", 1) == 1, "a store of an attempt before"
        ports.append(port)
    assert len(set(ports)) == 3
    assert torch_meeting.met == meetings


def test_the_nodes_that_are_missing_in_a_static_round_are_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_rounds, "MISSING_S", 0.1)
    monkeypatch.setattr(rendezvous, "COUNT_S", 0.2)
    reported: queue.SimpleQueue[int] = queue.SimpleQueue()
    listener = SimpleNamespace(nodes_missing=lambda count, _within_s: reported.put(count))
    missing = dynamic_rounds.MissingNodes(listener)  # type: ignore[arg-type]  # nothing else is asked
    counts = functools.partial(rendezvous.wait_nodes, missing=missing, cancelled=never)

    def enter(rank: int, waits: Any) -> None:  # noqa: ANN401  a partial, or a function
        rendezvous.enter_round(another_client(store), rank, 3, last=0, me=f"agent {rank}", waits=waits)

    nodes = [threading.Thread(target=enter, args=(0, counts)), *(threading.Thread(target=enter, args=(rank, waits)) for rank in (1, 2))]
    for node, left in zip(nodes, (2, 1, 0), strict=True):
        node.start()
        assert reported.get(timeout=DEADLINE_S) == left
    for node in nodes:
        node.join()


class LostMeeting(Meeting):
    """One whose store is lost, or whose handler has a bug."""

    error: Exception | None = None

    def num_nodes_waiting(self) -> int:
        if self.error is not None:
            raise self.error
        return 1


def test_a_rendezvous_that_cannot_be_asked_ends_no_healthy_ranks_and_is_logged_once(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "DEAF_S", 0.0)
    torch_meeting, waiting = LostMeeting(store, 2), list[int]()
    rounds = rendezvous.RoundRendezvous(torch_meeting, SimpleNamespace(nodes_waiting=waiting.append), nodes=2)  # type: ignore[arg-type]  # as above
    for error in (RendezvousConnectionError("gone"), RuntimeError("Broken pipe"), ConnectionResetError(), AttributeError("a bug")):
        torch_meeting.error = error
        assert rounds.num_nodes_waiting() == 0
    assert [row.message for row in caplog.records] == [
        "supervise: the rendezvous does not say whether nodes want to join: RendezvousConnectionError: gone"
    ]
    torch_meeting.error = None
    assert (rounds.num_nodes_waiting(), waiting) == (0, [1])


def test_a_lost_rendezvous_is_asked_again_only_after_a_while(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_meeting, now = LostMeeting(store, 2), [100.0]
    asked: list[float] = []

    def ask() -> int:
        asked.append(now[0])
        raise RendezvousConnectionError("gone")

    monkeypatch.setattr(torch_meeting, "num_nodes_waiting", ask)
    monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=lambda: now[0]))
    rounds = rendezvous.RoundRendezvous(torch_meeting, SimpleNamespace(nodes_waiting=None), nodes=2)  # type: ignore[arg-type]  # as above
    for _ in range(250):  # as torchrun asks, ten times a second
        assert rounds.num_nodes_waiting() == 0
        now[0] += 0.1
    assert len(asked) == 3


def test_a_node_alone_does_not_wait_before_its_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(dynamic_rendezvous, "_delay", slept.append)
    rendezvous.meet_at_once()
    dynamic_rendezvous._delay((0, 0.3))  # noqa: SLF001  of torch's
    assert not slept
    dynamic_rendezvous._delay(1)  # noqa: SLF001
    assert slept == [1]


def test_a_static_round_begins_when_all_are_in_it_and_never_twice(store: Store) -> None:
    rounds: queue.Queue[tuple[int, int]] = queue.Queue()

    def enter(rank: int, last: int) -> None:
        client = another_client(store)
        rounds.put((rank, rendezvous.enter_round(client, rank, 2, last=last, me=f"agent {rank}", waits=waits)))

    for number in (1, 2, 3):
        late = threading.Thread(target=enter, args=(1, number - 1))
        late.start()
        with pytest.raises(queue.Empty):
            rounds.get(timeout=0.2)
        enter(0, number - 1)
        assert sorted(rounds.get(timeout=DEADLINE_S) for _ in range(2)) == [(0, number), (1, number)]
        late.join()


def test_a_replacement_agent_waits_for_the_round_after_the_one_that_has_met(store: Store) -> None:
    rounds: queue.Queue[int] = queue.Queue()

    def enter(rank: int, last: int, me: str) -> None:
        rounds.put(rendezvous.enter_round(another_client(store), rank, 2, last=last, me=me, waits=waits))

    first = threading.Thread(target=enter, args=(1, 0, "agent 1"))
    first.start()
    enter(0, 0, "agent 0")
    assert {rounds.get(timeout=DEADLINE_S) for _ in range(2)} == {1}
    rendezvous.static_store(store, 1).set(rendezvous.HANDOVER, "{}")
    second = threading.Thread(target=enter, args=(1, 0, "the one in its place"))
    second.start()
    with pytest.raises(queue.Empty):
        rounds.get(timeout=0.3)
    enter(0, 1, "agent 0")
    assert {rounds.get(timeout=DEADLINE_S) for _ in range(2)} == {2}
    for thread in (first, second):
        thread.join()


def test_the_node_that_serves_torchs_store_is_the_coordinator_and_the_others_find_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    other, locations = another_client(store), queue.Queue[rendezvous.CoordinatorLocation | None]()
    looks = threading.Thread(target=lambda: locations.put(rendezvous.find_coordinator(other, SECOND, never)))
    looks.start()
    assert rendezvous.find_coordinator(store, FIRST, never) is None, "this node's supervisor is to be it"
    with pytest.raises(queue.Empty):
        locations.get(timeout=0.2)
    rendezvous.publish_coordinator(store, rendezvous.CoordinatorLocation("a", 4711, "key"))
    assert locations.get(timeout=DEADLINE_S) == rendezvous.CoordinatorLocation("127.0.0.1", 4711, "key")
    looks.join()
    assert rendezvous.find_coordinator(store, FIRST, never) == rendezvous.CoordinatorLocation("127.0.0.1", 4711, "key"), "and stays there"
    monkeypatch.setattr(rendezvous, "served_here", lambda _store: False)  # a torch whose text of a store does not show it
    server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # noqa: FBT003  as above
    unseen = PrefixStore("run", server)
    with pytest.raises(rendezvous.AttemptCancelled):
        rendezvous.find_coordinator(unseen, FIRST, lambda: True)
    monkeypatch.setattr(rendezvous, "CLAIM_S", 0.1)
    monkeypatch.setattr(rendezvous, "PEER_TIMEOUT_S", 0.2)
    assert rendezvous.find_coordinator(unseen, FIRST, never) is None, "where nobody shows that it serves, the first serves"
    with pytest.raises(TimeoutError, match="the coordinator's address"):
        rendezvous.find_coordinator(unseen, FIRST, never)


def test_without_a_served_store_node_0_of_the_first_round_stays_the_coordinator(tmp_path: Path) -> None:
    external = FileStore(str(tmp_path / "store"), -1)
    external.set(rendezvous.COORDINATOR, '{"host": "gone", "port": 1, "key": "of another job"}')
    place = rendezvous.CoordinatorLocation("10.0.0.1", 4711, "key")

    def looks(store: Store, node: rendezvous.MetNode, known: rendezvous.CoordinatorLocation | None) -> queue.Queue[Any]:
        locations: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=lambda: locations.put(rendezvous.find_coordinator(store, node, never, known)), daemon=True).start()
        return locations

    first_round = PrefixStore("round 7", external)
    second = looks(first_round, SECOND, None)
    assert rendezvous.find_coordinator(first_round, FIRST, never) is None, "this node's supervisor is to be it"
    rendezvous.publish_coordinator(first_round, place)
    assert second.get(timeout=DEADLINE_S) == place
    next_round = PrefixStore("round 8", external)
    new = looks(next_round, FIRST, None)  # a node that joins is node 0 of the next round
    assert looks(next_round, SECOND, place).get(timeout=DEADLINE_S) == place
    assert new.get(timeout=DEADLINE_S) == place
