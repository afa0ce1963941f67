"""The coordinator alone: ends, decisions, numbers, losses and rounds of looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.cluster import messages as protocol
from supervisor.cluster.coordinator import known_nodes, new_coordinator, step
from supervisor.cluster.messages import Beat, Decided, Ended, Gathered, Join, JudgeReports, LooksGathered, LookWanted, Peer, Post, Welcome
from supervisor.cluster.model import (
    BEGAN,
    DONE,
    FAILURE,
    GATHER,
    LEFT,
    LOOK,
    MEMBERSHIP,
    QUIT,
    REPORT,
    RESTART,
    SAVED,
    STALLED,
    STOP,
    SUCCESS,
    VOID,
    AttemptEnd,
    ClusterDecision,
    ClusterRules,
    CoordinatorMemory,
    SharedAttempt,
)

if TYPE_CHECKING:
    from supervisor.cluster.coordinator import CoordinatorInput, CoordinatorOutput, CoordinatorState

RULES = ClusterRules(nodes=3, looks_apart_s=30.0)
AGAIN, OTHER = ClusterDecision(RESTART, "x"), ClusterDecision(STOP, "y")
ALL = ("a", "b", "c")
EPOCH = SharedAttempt(1, ALL, "a", "m")


class Played:
    """A coordinator on node a, and what it sent since it was last asked."""

    def __init__(self, memory: CoordinatorMemory | None = None, since_t: float | None = None) -> None:
        self.t = 100.0
        self.state: CoordinatorState = new_coordinator("a", RULES, self.t, memory, since_t=since_t)
        self.outputs: list[CoordinatorOutput] = []

    def take(self, given: CoordinatorInput) -> None:
        """Give it something."""
        self.state, outputs = step(self.state, given)
        self.outputs += outputs

    def of(self, node: str, *messages: Join | Beat | protocol.Meet | Post) -> None:
        """Give it messages of a node."""
        for message in messages:
            self.take(protocol.FromNode(self.t, node, message))

    def join(self, *nodes: str, attempt: SharedAttempt | None = None, acted: ClusterDecision | None = None) -> None:
        """Let these nodes open a connection."""
        for node in nodes:
            self.of(node, Join(node, attempt, acted))

    def meet(self, token: str, *nodes: str, number: int = 1) -> None:
        """Let these nodes meet."""
        for index, node in enumerate(nodes):
            self.of(node, protocol.Meet(token, index, len(nodes), number))

    def post(self, kind: str, *nodes: str, text: str = "", index: int = 0) -> None:
        """Let these nodes post about the newest attempt."""
        assert self.state.memory.attempt is not None
        for node in nodes:
            self.of(node, Post(self.state.memory.attempt.number, kind, text or f"of {node}", index))

    def close(self, *nodes: str) -> None:
        """Close the connections of these nodes."""
        for node in nodes:
            self.take(protocol.NodeClosed(self.t, node))

    def passes(self, seconds: float, *beating: str, stepped_s: float | None = None, step_s: float | None = None) -> None:
        """Let time pass in steps of half a second, in which these nodes beat."""
        until = self.t + seconds
        while self.t < until:
            self.t += 0.5
            for node in beating:
                self.of(node, Beat(self.t, "", stepped_s, step_s))
            self.take(protocol.CoordinatorTick(self.t))

    def sent_messages(self) -> list[tuple[str, object]]:
        """Return what it sent to which node since the last call, without answers to beats, and clear it."""
        sent = [(node, sent.message) for sent in self.outputs if isinstance(sent, protocol.SendToNodes) for node in sent.nodes]
        self.outputs.clear()
        return [(node, message) for node, message in sent if not isinstance(message, protocol.BeatAnswer)]

    def decide(self, decision: ClusterDecision = AGAIN) -> None:
        """Let the core of the host decide."""
        assert self.state.memory.attempt is not None
        self.take(protocol.DecisionProposed(self.t, self.state.memory.attempt.number, decision))


def together(*nodes: str) -> Played:
    """Return a coordinator whose first attempt these nodes have begun."""
    played = Played(since_t=0.0)
    played.join(*nodes)
    played.meet("m", *nodes)
    played.sent_messages()
    return played


def ended() -> Played:
    """Return a coordinator whose attempt of three nodes has ended, and of which all have reported."""
    played = together(*ALL)
    played.post(FAILURE, "b")
    played.post(REPORT, *ALL)
    played.sent_messages()
    return played


# numbers


def test_a_meeting_gets_a_number_when_all_of_it_are_there_not_less_than_any_of_them_asks_for() -> None:
    played = Played()
    played.join(*ALL)
    for index, node in enumerate("ab"):
        played.of(node, protocol.Meet("m", index, 3, 4 + index))
    assert played.state.memory.attempt is None
    played.sent_messages()
    played.of("c", protocol.Meet("m", 2, 3, 6))
    attempt = SharedAttempt(6, ALL, "a", "m")
    assert played.state.memory == CoordinatorMemory(attempt), "it is kept before it is sent"
    assert played.sent_messages() == [(node, protocol.Began(attempt)) for node in ALL]


def test_a_node_that_is_gone_before_the_number_takes_part_in_no_meeting() -> None:
    played = Played()
    played.join(*ALL)
    for index, node in enumerate("ab"):
        played.of(node, protocol.Meet("m", index, 3, 1))
    played.close("b")
    played.of("c", protocol.Meet("m", 2, 3, 1))
    assert played.state.memory.attempt is None


def test_no_number_is_given_while_an_attempt_is_open_and_none_after_the_job() -> None:
    played = together(*ALL)
    played.meet("n", "b", "c")
    assert played.state.memory.attempt == EPOCH
    played.post(FAILURE, "b")
    played.decide()
    assert played.state.memory.attempt == SharedAttempt(2, ("b", "c"), "a", "n"), "now it is"
    played.post(DONE, "b", "c")
    assert played.state.memory.decision == ClusterDecision(SUCCESS)
    played.meet("o", *ALL, number=3)
    assert played.state.memory.attempt.number == 2


@pytest.mark.parametrize(("since_t", "waits_s"), [(None, 60.0), (70.0, 30.0)])
def test_fewer_nodes_than_there_may_be_wait_at_a_coordinator_that_knows_of_no_attempt(since_t: float | None, waits_s: float) -> None:
    """Ranks of an attempt that it does not know may live. It counts from when none can be left on its own host."""
    played = Played(since_t=since_t)
    played.join("a", "b")
    played.meet("m", "a", "b")
    played.passes(waits_s - 1.0, "a", "b")
    assert played.state.memory.attempt is None
    played.passes(1.5, "a", "b")
    assert played.state.memory.attempt == SharedAttempt(1, ("a", "b"), "a", "m")


def test_so_they_do_where_a_node_knows_a_newer_attempt_than_the_coordinator() -> None:
    old, newer = EPOCH, SharedAttempt(4, ALL, "a", "lost")
    played = Played(CoordinatorMemory(old, AttemptEnd(FAILURE, "b", ""), AGAIN))
    played.join("a", "b", attempt=newer)
    assert [message.attempt for _, message in played.sent_messages() if isinstance(message, Welcome)] == [old, old], "so each steps aside"
    played.meet("m", "a", "b", number=5)
    played.passes(59.0, "a", "b")
    assert played.state.memory.attempt == old
    played.passes(2.0, "a", "b")
    assert played.state.memory.attempt == SharedAttempt(5, ("a", "b"), "a", "m")


# ends and decisions


@pytest.mark.parametrize(
    ("posts", "kind", "node"),
    [
        ([(FAILURE, "b")], FAILURE, "b"),
        ([(MEMBERSHIP, "c")], MEMBERSHIP, "c"),
        ([(LEFT, "c")], LEFT, "c"),
        ([(QUIT, "c")], LEFT, "c"),
        ([(DONE, "a"), (DONE, "c"), (SAVED, "b")], MEMBERSHIP, "a"),
        ([(SAVED, "a"), (SAVED, "c"), (SAVED, "b")], MEMBERSHIP, "a"),
    ],
)
def test_the_first_end_stands(posts: list[tuple[str, str]], kind: str, node: str) -> None:
    played = together(*ALL)
    for message, sender in posts:
        assert played.state.memory.end is None
        played.post(message, sender)
    end = played.state.memory.end
    assert end is not None
    assert (end.kind, end.node) == (kind, node)
    assert played.sent_messages() == [(name, Ended(1, end)) for name in ALL]
    played.post(FAILURE, "a", "b", "c")
    assert played.state.memory.end == end


def test_a_success_after_a_failure_does_not_count() -> None:
    played = together(*ALL)
    played.post(FAILURE, "b")
    played.post(DONE, *ALL)
    played.post(REPORT, *ALL)
    assert played.state.memory.decision is None


@pytest.mark.parametrize(("kind", "decision"), [(DONE, SUCCESS), (VOID, VOID)])
def test_two_decisions_need_no_core(kind: str, decision: str) -> None:
    played = together(*ALL)
    played.post(kind, *ALL)
    assert played.state.memory.decision == ClusterDecision(decision)
    assert not [output for output in played.outputs if isinstance(output, JudgeReports)]


def test_the_reports_of_all_who_live_are_judged_and_the_first_decision_stands() -> None:
    played = together(*ALL)
    played.decide(OTHER)
    assert played.state.memory.decision is None, "it has no end"
    played.post(FAILURE, "b")
    played.post(QUIT, "c", text="143")
    played.post(REPORT, "b", "a")
    (judged,) = [output for output in played.outputs if isinstance(output, JudgeReports)]
    assert judged == JudgeReports(1, (("a", "of a"), ("b", "of b")), (("c", "left: 143"),))
    played.sent_messages()
    played.decide(AGAIN)
    assert played.state.memory == CoordinatorMemory(EPOCH, AttemptEnd(FAILURE, "b", "of b"), AGAIN), "kept before it is sent"
    assert played.sent_messages() == [("a", Decided(1, AGAIN, 2)), ("b", Decided(1, AGAIN, 2)), ("c", Decided(1, AGAIN, 0))]
    played.decide(OTHER)
    assert played.state.memory.decision == AGAIN


def test_a_report_is_awaited_for_60_s() -> None:
    played = together(*ALL)
    played.post(FAILURE, "b")
    played.post(REPORT, "a", "b")
    played.passes(59.0, *ALL)
    assert not [output for output in played.outputs if isinstance(output, JudgeReports)]
    played.passes(1.5, *ALL)
    (judged,) = [output for output in played.outputs if isinstance(output, JudgeReports)]
    assert judged.missing == (("c", "no report within 60 s"),)


def test_a_node_that_waits_to_join_learns_the_decision_too() -> None:
    played = ended()
    played.join("d")
    played.sent_messages()
    played.decide(OTHER)
    assert ("d", Decided(1, OTHER, 0)) in played.sent_messages()


def test_an_attempt_without_live_members_is_void() -> None:
    played = together("b", "c")
    played.post(QUIT, "b", "c")
    played.passes(0.5)
    assert played.state.memory.decision == ClusterDecision(VOID)


# connections


def test_a_node_that_comes_back_learns_what_it_missed_and_its_posts_count_once() -> None:
    played = together(*ALL)
    played.post(GATHER, *ALL, index=1)
    played.post(BEGAN, "a")
    played.sent_messages()
    played.join("c", attempt=EPOCH)
    assert played.sent_messages() == [
        ("c", Welcome("a", EPOCH, returning=3)),
        ("c", Gathered(1, 1, ("of a", "of b", "of c"))),
        ("c", Peer(1, "a", "of a")),
    ]
    played.post(GATHER, "c", index=1, text="another")
    assert played.state.posted(GATHER, 1)["c"] == "of c"
    assert not played.sent_messages()


def test_a_restarted_coordinator_continues_once_its_members_posted_again() -> None:
    before = ended()
    played = Played(before.state.memory)
    played.join("a", "b", attempt=EPOCH)
    played.post(REPORT, "a", "b")
    played.passes(59.0, "a", "b")
    assert not [output for output in played.outputs if isinstance(output, JudgeReports)], "c has time to come back"
    played.join("c", attempt=EPOCH)
    played.post(REPORT, "c")
    (judged,) = [output for output in played.outputs if isinstance(output, JudgeReports)]
    assert judged == JudgeReports(1, tuple((node, f"of {node}") for node in ALL), ())


def test_a_decision_lost_on_disk_is_taken_over_from_a_node_that_acted_on_it() -> None:
    before = ended()
    played = Played(before.state.memory)
    played.join("a", attempt=EPOCH)
    played.join("b", attempt=EPOCH, acted=AGAIN)
    assert played.state.memory.decision == AGAIN
    assert ("a", Decided(1, AGAIN, 3)) in played.sent_messages()
    played.decide(OTHER)
    assert played.state.memory.decision == AGAIN


def test_a_coordinator_without_memory_learns_the_end_of_the_job_from_a_node() -> None:
    played = Played()
    played.join("d")
    played.join("b", attempt=EPOCH, acted=OTHER)
    assert ("d", Decided(1, OTHER, 0)) in played.sent_messages()


# losses


def test_a_node_that_its_guardian_says_is_gone_is_lost_at_once() -> None:
    played = together(*ALL)
    played.close("b")
    played.take(protocol.FromNode(played.t, "b", protocol.Gone("b")))
    assert played.state.absences == {"b": "lost: its supervise died, and its processes are ended"}
    assert played.state.memory.end == AttemptEnd(FAILURE, "b", "its supervise died, and its processes are ended")


def test_a_node_that_came_back_meanwhile_is_not_gone() -> None:
    played = together(*ALL)
    played.take(protocol.FromNode(played.t, "b", protocol.Gone("b")))
    played.join("b", attempt=EPOCH)
    played.close("b")
    played.passes(5.0, "a", "c")
    assert not played.state.absences


def test_a_closed_connection_that_is_back_within_10_s_costs_nothing() -> None:
    played = together(*ALL)
    played.close("b", "c")
    played.passes(9.5, "a")
    played.join("c", attempt=EPOCH)
    played.passes(1.0, "a", "c")
    assert played.state.absences == {"b": "lost: it has not answered for 10 s"}


def test_a_host_that_had_not_answered_when_its_connection_ended_is_lost_10_s_after_it_was_heard_last() -> None:
    played = together(*ALL)
    played.passes(5.0, "a", "c")
    played.take(protocol.NodeClosed(played.t, "b", 5.0))
    played.passes(5.0, "a", "c")
    assert not played.state.absences
    played.passes(0.5, "a", "c")
    assert set(played.state.absences) == {"b"}


def test_a_pause_of_the_coordinator_is_no_time_in_which_a_host_did_not_answer() -> None:
    played = together(*ALL)
    played.passes(2.0, *ALL)
    played.t += 20.0
    played.take(protocol.CoordinatorTick(played.t))
    played.take(protocol.NodeClosed(played.t, "b", 5.0))
    played.passes(10.0, "a", "c")
    assert not played.state.absences
    played.passes(0.5, "a", "c")
    assert set(played.state.absences) == {"b"}


def test_a_node_is_not_lost_for_a_closed_connection_while_others_end_steps() -> None:
    played = together(*ALL)
    played.close("b")
    played.passes(600.0, "a", "c", stepped_s=4.0, step_s=3.0)
    assert not played.state.absences
    (b,) = [node for node in known_nodes(played.state, played.t).nodes if node.node == "b"]
    assert (b.absence, b.reached) == ("", False)
    played.passes(1.0, "a", "c", stepped_s=10.0, step_s=3.0)
    assert set(played.state.absences) == {"b"}


def test_a_usual_step_may_take_twice_its_time() -> None:
    played = together(*ALL)
    played.close("b")
    played.passes(60.0, "a", "c", stepped_s=70.0, step_s=40.0)
    assert not played.state.absences
    played.passes(1.0, "a", "c", stepped_s=80.0, step_s=40.0)
    assert set(played.state.absences) == {"b"}


def test_a_node_that_does_not_know_what_its_ranks_did_meanwhile_accuses_nobody() -> None:
    """Node a saw a step 2 s before its last beat, and was stopped then."""
    played = together(*ALL)
    played.of("a", Beat(played.t, "", 2.0, 1.0))
    played.close("b")
    played.passes(30.0, "c")
    assert not played.state.absences


def test_once_the_attempt_has_ended_a_closed_connection_is_a_loss_after_3_s() -> None:
    played = together(*ALL)
    played.post(FAILURE, "a")
    played.close("b")
    played.passes(3.0, "a", "c", stepped_s=0.0)
    assert not played.state.absences
    played.passes(0.5, "a", "c", stepped_s=0.0)
    assert set(played.state.absences) == {"b"}


def test_a_node_that_is_connected_and_silent_is_lost_after_60_s() -> None:
    played = together(*ALL)
    played.passes(60.0, "a", "c", stepped_s=0.1)
    assert not played.state.absences
    played.passes(0.5, "a", "c", stepped_s=0.1)
    assert played.state.absences == {"b": "lost: silent for 60 s, though it can be reached"}


def test_the_host_is_not_lost_at_its_own_coordinator() -> None:
    played = together(*ALL)
    played.passes(100.0, "b", "c")
    assert not played.state.absences


@pytest.mark.parametrize("reaches", [True, False])
def test_the_time_in_which_the_coordinator_stood_still_is_nobodys_silence(reaches: bool) -> None:  # noqa: FBT001
    played = together(*ALL)
    if reaches:
        played.passes(50.0, "a", "c")
    else:
        played.close("b")
        played.passes(5.0, "a", "c")
    played.t += 500.0
    played.take(protocol.CoordinatorTick(played.t))
    played.passes(4.0, "a", "c")
    assert not played.state.absences
    played.passes(10.0, "a", "c")
    assert set(played.state.absences) == {"b"}


def test_members_that_nobody_reaches_end_their_ranks_before_they_count_as_lost() -> None:
    """Node a takes no part: b and c may train on together, until each finds no coordinator for `wait_s`."""
    played = Played(since_t=0.0)
    played.join(*ALL)
    played.meet("m", "b", "c")
    played.close("b", "c")
    played.passes(RULES.wait_s + 59.0, "a")
    assert not played.state.absences
    played.passes(2.0, "a")
    assert set(played.state.absences) == {"b", "c"}
    assert played.state.memory.decision == ClusterDecision(VOID)


# looks


def test_all_nodes_look_where_one_stalls_and_the_host_gets_the_looks() -> None:
    played = together(*ALL)
    played.post(STALLED, "c", index=1)
    assert played.sent_messages() == [(node, LookWanted(1, 1)) for node in ALL]
    played.post(STALLED, "b", index=1)
    played.post(LOOK, "c", "a", index=1)
    played.post(LOOK, "b", index=0)
    assert not played.outputs, "there is a round already, and b answers an older one"
    played.post(LOOK, "b", index=1)
    assert played.outputs == [LooksGathered(1, 1, (("a", "of a"), ("b", "of b"), ("c", "of c")), ())]


def test_a_node_without_a_look_in_20_s_is_named() -> None:
    played = together(*ALL)
    played.post(STALLED, "c", index=1)
    played.post(LOOK, "c", "a", index=1)
    played.passes(20.0, *ALL)
    (looks,) = [output for output in played.outputs if isinstance(output, LooksGathered)]
    assert looks == LooksGathered(1, 1, (("a", "of a"), ("c", "of c")), (("b", "no look within 20 s"),))
    played.sent_messages()
    played.post(STALLED, "c", index=2)
    played.passes(9.0, *ALL)
    assert not played.sent_messages()
    played.passes(2.0, *ALL)
    assert played.sent_messages() == [(node, LookWanted(1, 2)) for node in ALL]


def test_a_node_that_comes_back_in_a_round_of_looks_is_asked_again() -> None:
    played = together(*ALL)
    played.close("b")
    played.post(STALLED, "c", index=1)
    played.sent_messages()
    played.join("b", attempt=EPOCH)
    assert ("b", LookWanted(1, 1)) in played.sent_messages()


def test_no_round_of_looks_begins_once_the_attempt_has_ended() -> None:
    played = together(*ALL)
    played.post(FAILURE, "a")
    played.sent_messages()
    played.post(STALLED, "c", index=1)
    assert not played.sent_messages()


def test_the_core_may_want_another_round_and_tells_all_members_what_it_found() -> None:
    played = together(*ALL)
    played.take(protocol.LooksDue(played.t, 7))
    assert not played.sent_messages(), "of another attempt"
    played.take(protocol.LooksDue(played.t, 1))
    assert played.sent_messages() == [(node, LookWanted(1, 1)) for node in ALL]
    played.take(protocol.LooksJudged(played.t, 7, "a hang"))
    played.take(protocol.LooksJudged(played.t, 1, "a hang"))
    assert played.sent_messages() == [(node, protocol.Looked(1, "a hang")) for node in ALL]


def test_a_coordinator_that_is_started_again_asks_for_looks_that_no_member_has_given_yet() -> None:
    played = Played(CoordinatorMemory(EPOCH))
    for node in ALL:
        played.join(node, attempt=EPOCH)
    played.sent_messages()
    played.post(STALLED, "c", index=1)
    ((_, wanted), *_) = played.sent_messages()
    assert isinstance(wanted, LookWanted)
    assert wanted.look > 100
