"""The control store by itself: rows, numbers and leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.cluster.messages import MeetNodes, NodeBeat, NodeHello, ReadReports, StoreReports, StoreRows, WriteRow
from supervisor.cluster.model import RESTART, SUCCESS, ClusterDecision, ClusterRules, Epoch, nodes_of
from supervisor.cluster.store import FromNode, KeepRows, NodeClosed, SendToNode, StoreTick, new_store, step

if TYPE_CHECKING:
    from supervisor.cluster.messages import ToStore
    from supervisor.cluster.store import StoreInput, StoreOutput, StoreState

RULES = ClusterRules(nodes=3)
AGAIN = ClusterDecision(RESTART, "x").value()


class Played:
    """A store, and what it sent."""

    def __init__(self, kept: tuple[tuple[str, str], ...] = ()) -> None:
        self.t = 100.0
        self.state: StoreState = new_store("s", "a", RULES, self.t, kept)
        self.sent: list[StoreOutput] = []

    def take(self, message: StoreInput) -> list[StoreOutput]:
        """Give it a message; return what it sends."""
        self.state, outputs = step(self.state, message)
        self.sent += outputs
        return list(outputs)

    def of(self, *messages: ToStore) -> list[StoreOutput]:
        """Give it messages of nodes; return what it sends."""
        return [output for message in messages for output in self.take(FromNode(self.t, message))]

    def passes(self, seconds: float, *beating: str) -> None:
        """Let time pass in steps of half a second, in which these nodes beat."""
        until = self.t + seconds
        while self.t < until:
            self.t += 0.5
            for node in beating:
                self.take(FromNode(self.t, NodeBeat(node, 0)))
            self.take(StoreTick(self.t))

    def meets(self, token: str, *nodes: str, number: int = 1, epoch: int = 0) -> None:
        """Let these nodes meet."""
        for index, node in enumerate(nodes):
            self.of(MeetNodes(node, token, index, len(nodes), number, epoch))

    def lost(self, number: int = 1) -> frozenset[str]:
        """Return the members that it counts as lost."""
        return nodes_of(self.state.rows, "lost", number)


def test_the_first_value_of_a_row_stays() -> None:
    played = Played()
    played.meets("m", "a", "b", "c")
    played.of(WriteRow("a", "decision/1", AGAIN), WriteRow("b", "decision/1", "other"))
    assert played.state.rows["decision/1"] == AGAIN


def test_a_meeting_gets_a_number_when_all_of_it_are_there_and_only_once() -> None:
    played = Played()
    messages = [MeetNodes(node, "m", index, 3, 4 + index, 0) for index, node in enumerate("abc")]
    played.of(*messages[:2], messages[0])
    assert played.state.epoch is None
    played.of(messages[2])
    assert played.state.epoch == Epoch(6, ("a", "b", "c"), "a", "m"), "not less than any of them asks for"
    played.of(WriteRow("a", "decision/6", AGAIN), *messages)
    assert played.state.epoch.number == 6, "these came late"


def test_no_number_is_given_while_an_epoch_is_open_and_none_after_the_job() -> None:
    played = Played()
    played.meets("m", "a", "b", "c")
    played.meets("n", "b", "c", number=2, epoch=1)
    assert played.state.epoch is not None
    assert played.state.epoch.number == 1
    played.of(WriteRow("a", "decision/1", AGAIN))
    assert played.state.epoch.members == ("b", "c"), "now it is"
    played.of(WriteRow("b", "decision/2", ClusterDecision(SUCCESS).value()))
    played.meets("o", "a", "b", "c", number=3, epoch=2)
    assert played.state.epoch.number == 2


def test_a_node_that_knows_a_newer_epoch_than_the_store_is_waited_for() -> None:
    played = Played()
    played.meets("m", "a", "b", "c", number=8, epoch=7)
    assert played.state.epoch is None
    played.of(WriteRow("c", *Epoch(7, ("b", "c"), "a", "old").row()), WriteRow("c", "decision/7", AGAIN))
    assert played.state.epoch == Epoch(8, ("a", "b", "c"), "a", "m")


def test_fewer_nodes_than_there_may_be_wait_at_a_store_that_knows_of_no_epoch() -> None:
    played = Played()
    played.meets("m", "a", "b")
    played.passes(19.0, "a", "b")
    assert played.state.epoch is None
    played.passes(2.0, "a", "b")
    assert played.state.epoch == Epoch(1, ("a", "b"), "a", "m")


def test_the_wait_for_nodes_that_know_more_counts_from_the_start_of_the_hosts_supervisor() -> None:
    played = Played()
    played.state = new_store("s", "a", RULES, played.t, since_t=played.t - RULES.rejoin_window_s + 2.0)
    played.meets("m", "a", "b")
    played.passes(1.5, "a", "b")
    assert "epoch/1" not in played.state.rows
    played.passes(1.0, "a", "b")
    assert "epoch/1" in played.state.rows


def test_a_member_is_lost_without_beats_and_sooner_without_a_connection() -> None:
    played = Played()
    played.of(*(NodeHello(node) for node in "abc"))
    played.meets("m", "a", "b", "c")
    played.passes(6.0, "a")
    assert played.lost() == set()
    played.passes(1.0, "a")
    assert played.lost() == {"b", "c"}
    assert played.state.rows["lost/1/b"] == "silent for 60 s"

    played = Played()
    played.of(*(NodeHello(node) for node in "abc"))
    played.meets("m", "a", "b", "c")
    played.take(NodeClosed(played.t, "b"))
    played.take(NodeClosed(played.t, "c"))
    played.passes(1.0, "a")
    played.of(NodeHello("c"))
    played.passes(2.0, "a", "c")
    assert played.lost() == {"b"}


def test_the_host_is_not_lost_in_its_own_store() -> None:
    played = Played()
    played.meets("m", "a", "b", "c")
    played.passes(60.0, "b", "c")
    assert played.lost() == set()


def test_the_time_in_which_the_store_stood_still_is_nobodys_silence() -> None:
    played = Played()
    played.of(*(NodeHello(node) for node in "abc"))
    played.meets("m", "a", "b", "c")
    played.passes(3.0, "a", "c")
    played.t += 50.0
    played.take(StoreTick(played.t))
    assert played.lost() == set()
    played.passes(2.0, "a", "c")
    assert played.lost() == set(), "b was silent for 5 s"
    played.passes(2.0, "a", "c")
    assert played.lost() == {"b"}


def test_a_store_begins_with_what_it_kept_and_members_have_time_to_come_back() -> None:
    played = Played()
    played.meets("m", "a", "b", "c")
    played.of(WriteRow("a", "end/1", "[]"), WriteRow("a", "report/1/a", "r"))
    kept = [output.rows for output in played.sent if isinstance(output, KeepRows)][-1]
    assert [key for key, _ in kept] == ["epoch/1", "end/1"]

    again = Played(kept)
    assert set(again.state.rows) == {"epoch/1", "end/1", "kept/1"}
    again.passes(19.0, "a", "b")
    assert again.lost() == set()
    again.passes(2.0, "a", "b")
    assert again.lost() == {"c"}


def test_what_must_be_on_disk_comes_before_what_is_sent_of_it() -> None:
    played = Played()
    played.of(*(NodeHello(node) for node in "abc"))
    played.meets("m", "a", "b", "c")
    outputs = played.of(WriteRow("a", "decision/1", AGAIN))
    assert isinstance(outputs[0], KeepRows)
    assert {output.node for output in outputs[1:] if isinstance(output, SendToNode)} == {"a", "b", "c"}


def test_an_epoch_without_live_members_is_void() -> None:
    played = Played()
    played.meets("m", "b", "c")
    played.passes(21.0, "b", "c")
    played.of(WriteRow("b", "left/1/b", "143"))
    played.passes(10.0)
    assert played.lost() == {"c"}
    assert ClusterDecision.read(played.state.rows["decision/1"]).kind == "void"


def test_a_node_gets_what_it_has_not_and_reports_only_where_it_asks() -> None:
    played = Played()
    played.of(NodeHello("b"))
    played.meets("m", "a", "b", "c")
    played.of(WriteRow("a", "report/1/a", "evidence"))
    (answer,) = played.of(NodeBeat("b", 1, 17.5))
    assert answer == SendToNode("b", StoreRows("s", "a", 1, 2, (("report/1/a", ""),), 17.5, played.t))
    (answer,) = played.of(ReadReports("b", 1))
    assert answer == SendToNode("b", StoreReports("s", 1, (("a", "evidence"),)))
