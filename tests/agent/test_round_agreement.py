"""The ends of rounds and the decisions over a real store of torch's."""

from __future__ import annotations

import json
import queue
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.agent import round_agreement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed import Store

DEADLINE_S = 30.0
CHANGES = round_agreement.DecisionChanges((("batch_size", "16"),), ("ckpt/7.pt",))


@pytest.fixture
def store() -> Iterator[Store]:
    server = round_agreement.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # noqa: FBT003  positional in every version
    yield round_agreement.PrefixStore("run", server)
    del server


def never() -> bool:
    return False


class Node:
    """One node's agreement, and what it received."""

    def __init__(self, store: Store, name: str, token: str = "t") -> None:  # noqa: S107  not a secret
        """Start to watch the round."""
        self.received: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self.agreement = round_agreement.RoundAgreement(
            store,
            token,
            node=name,
            nodes=2,
            on_round_ended=lambda *what: self.received.put(("end", *what)),
            on_decision=lambda *what: self.received.put(("decision", *what)),
        )


def test_the_first_failure_ends_the_round_and_the_decision_reaches_the_others(store: Store) -> None:
    one, two = Node(store, "one"), Node(store, "two")
    one.agreement.fail("rank 3: signal 9")
    assert two.received.get(timeout=DEADLINE_S) == ("end", "failure", "one", "rank 3: signal 9")
    two.agreement.fail("rank 5: exit code 1")  # a consequence: it comes second
    one.agreement.publish("stop", 65, "twice", CHANGES)
    one.agreement.finish(DEADLINE_S, done=False)  # returns when the other has read it
    assert two.received.get(timeout=DEADLINE_S) == ("decision", "stop", 65, "twice", CHANGES)
    assert one.received.empty()
    two.agreement.finish(DEADLINE_S, done=False)


def test_an_attempt_may_last_longer_than_one_wait(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_agreement, "LONG_WAIT", timedelta(seconds=0.2))
    over = threading.Semaphore(0)  # counts the waits that ended without what they waited for

    class Counting(round_agreement.PrefixStore):
        def check(self, keys: list[str]) -> bool:
            over.release()
            return super().check(keys)

    monkeypatch.setattr(round_agreement, "PrefixStore", Counting)
    one, two = Node(store, "one"), Node(store, "two")

    def await_waits(count: int) -> None:
        for _ in range(count):
            assert over.acquire(timeout=DEADLINE_S)

    await_waits(2 * 3)  # of both nodes, several
    one.agreement.fail("rank 3: signal 9")
    assert two.received.get(timeout=DEADLINE_S) == ("end", "failure", "one", "rank 3: signal 9")
    await_waits(2 * 2)
    one.agreement.publish("stop", 65, "twice", CHANGES)
    assert two.received.get(timeout=DEADLINE_S) == ("decision", "stop", 65, "twice", CHANGES)
    for node in (one, two):
        node.agreement.finish(DEADLINE_S, done=False)


def test_a_node_that_leaves_ends_the_round_for_those_that_run_unless_all_are_done(store: Store) -> None:
    one, two = Node(store, "one", "a"), Node(store, "two", "a")
    one.agreement.finish(DEADLINE_S, done=False)
    assert two.received.get(timeout=DEADLINE_S)[:3] == ("end", "failure", "one")
    left = two.received.get(timeout=DEADLINE_S)
    assert (*left[:2], left[4]) == ("decision", "restart", None)
    two.agreement.finish(DEADLINE_S, done=False)

    one, two = Node(store, "one", "b"), Node(store, "two", "b")
    one.agreement.finish(DEADLINE_S, done=True)
    two.agreement.finish(DEADLINE_S, done=True)
    assert two.received.empty()
    assert one.received.empty()


def write(store: Store, key: str, kind: str, node: str, text: str) -> None:
    """Set the end or the decision of round t, as a node does that is not there any more."""
    note = {"kind": kind, "node": node, "text": text, "exit_code": 0}
    round_agreement.own_client(store).compare_set(f"supervise/t/{key}", "", json.dumps(note))


def test_where_the_node_that_ended_the_round_is_silent_one_decision_is_made_in_its_place(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_agreement, "SILENT_S", 0.3)
    monkeypatch.setattr(round_agreement, "BEAT_S", 0.05)
    one, two = Node(store, "one"), Node(store, "two")
    write(store, "end", "failure", "dead/1", "rank 3: signal 9")
    received = []
    for node in (one, two):
        assert node.received.get(timeout=DEADLINE_S) == ("end", "failure", "dead", "rank 3: signal 9")
        received.append(node.received.get(timeout=DEADLINE_S))
    assert received[0] == received[1]
    assert (received[0][:2], received[0][4]) == (("decision", "restart"), None)
    assert "node dead was silent" in received[0][3]
    for node in (one, two):
        node.agreement.finish(DEADLINE_S, done=False)


def test_a_node_that_is_only_slow_to_decide_is_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_agreement, "SILENT_S", 1.0)
    monkeypatch.setattr(round_agreement, "BEAT_S", 0.05)
    one, two = Node(store, "one"), Node(store, "two")
    one.agreement.fail("rank 3: signal 9")
    assert two.received.get(timeout=DEADLINE_S)[0] == "end"
    with pytest.raises(queue.Empty):
        two.received.get(timeout=2.0)
    one.agreement.publish("stop", 65, "twice", CHANGES)
    assert two.received.get(timeout=DEADLINE_S) == ("decision", "stop", 65, "twice", CHANGES)
    for node in (one, two):
        node.agreement.finish(DEADLINE_S, done=False)


def test_what_was_decided_in_the_place_of_a_silent_node_holds_for_it_too(store: Store) -> None:
    one, two = Node(store, "one"), Node(store, "two")
    one.agreement.fail("rank 3: signal 9")
    assert two.received.get(timeout=DEADLINE_S)[0] == "end"
    write(store, "decision", "restart", "three", "node one was silent")  # by a third node, which did not get its beats
    for node in (one, two):
        assert node.received.get(timeout=DEADLINE_S) == ("decision", "restart", 0, "node one was silent", None)
        node.agreement.finish(DEADLINE_S, done=False)


def test_a_node_without_supervisor_leaves_a_decision_only_where_its_own_rank_failed_first(store: Store) -> None:
    one, two = Node(store, "one", "a"), Node(store, "two", "a")
    one.agreement.abandon()
    one.agreement.fail("rank 3: signal 15")
    assert two.received.get(timeout=DEADLINE_S)[:3] == ("end", "failure", "one")
    left = two.received.get(timeout=DEADLINE_S)
    assert (left[:2], left[4]) == (("decision", "restart"), None)
    for node in (one, two):
        node.agreement.finish(DEADLINE_S, done=False)

    one, two = Node(store, "one", "b"), Node(store, "two", "b")
    two.agreement.fail("rank 5: exit code 1")
    assert one.received.get(timeout=DEADLINE_S)[:3] == ("end", "failure", "two")
    one.agreement.abandon()
    one.agreement.fail("rank 3: signal 15")
    one.agreement.finish(DEADLINE_S, done=False)
    two.agreement.publish("stop", 65, "twice", CHANGES)
    two.agreement.finish(DEADLINE_S, done=False)
    decision = json.loads(round_agreement.own_client(store).get("supervise/b/decision"))
    assert decision["text"] == "twice", "a node that leaves does not decide in the place of one that lives"


def test_a_store_that_is_lost_before_the_decision_is_an_answer() -> None:
    server = round_agreement.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # noqa: FBT003  positional in every version
    client = round_agreement.own_client(server)
    node = Node(client, "one")
    write(client, "end", "failure", "dead/1", "rank 3: signal 9")
    assert node.received.get(timeout=DEADLINE_S)[0] == "end"
    del server
    received = node.received.get(timeout=DEADLINE_S)
    assert received[:2] == ("decision", "restart")
    assert "store was lost" in received[3]


def test_admission_is_no_failure(store: Store) -> None:
    one, two = Node(store, "one"), Node(store, "two")
    one.agreement.admit()
    assert two.received.get(timeout=DEADLINE_S)[:2] == ("end", "membership")
    for node in (one, two):
        node.agreement.finish(DEADLINE_S, done=False)
