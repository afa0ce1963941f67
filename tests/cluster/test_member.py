"""The member of one node, alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from supervisor.cluster import messages as protocol
from supervisor.cluster.member import new_member, step
from supervisor.cluster.messages import Began, Decided, Ended, Gathered, Join, LookWanted, Meet, Post, Welcome
from supervisor.cluster.model import (
    FAILURE,
    GATHER,
    LOOK,
    QUIT,
    REPORT,
    RESTART,
    STALLED,
    STOP,
    VOID,
    AttemptEnd,
    ClusterDecision,
    ClusterRules,
    NodeMemory,
    SharedAttempt,
)

if TYPE_CHECKING:
    from supervisor.cluster.member import MemberInput, MemberOutput, MemberState

RULES = ClusterRules(nodes=3)
EPOCH, NEXT = SharedAttempt(3, ("a", "b"), "a", "m"), SharedAttempt(4, ("a", "c"), "a", "n")
AGAIN, OVER = ClusterDecision(RESTART, "x"), ClusterDecision(STOP, "y")
END = AttemptEnd(FAILURE, "a", "a rank failed")


class Played:
    """Node b, and what it had to do since it was last asked."""

    def __init__(self, memory: NodeMemory | None = None, rules: ClusterRules = RULES) -> None:
        self.t = 100.0
        self.state: MemberState = new_member(memory or NodeMemory("b"), rules, self.t)

    def take(self, given: MemberInput) -> list[MemberOutput]:
        """Give it something; return what it has to do, without beats."""
        self.state, outputs = step(self.state, given)
        return [output for output in outputs if not isinstance(getattr(output, "message", None), protocol.Beat)]

    def hears(self, *messages: protocol.FromTheCoordinator) -> list[MemberOutput]:
        """Give it messages of the coordinator; return what it has to do."""
        return [output for message in messages for output in self.take(protocol.FromCoordinator(self.t, message))]

    def opens(self, welcome: Welcome | None = None) -> list[MemberOutput]:
        """Open a connection; return what it has to do after the answer to its Join."""
        self.take(protocol.LinkOpened(self.t))
        return self.hears(welcome or Welcome("a", self.state.memory.attempt))

    def passes(self, seconds: float, stepped_s: float | None = None, *, answered: bool = False) -> list[MemberOutput]:
        """Let time pass in steps of half a second; return what it has to do. stepped_s: at the end of each of them."""
        until = self.t + seconds
        outputs: list[MemberOutput] = []
        while self.t < until:
            self.t += 0.5
            outputs += self.take(protocol.NodeTick(self.t, "", stepped_s, 1.0))
            if answered:
                outputs += self.hears(protocol.BeatAnswer(self.t, 0.0))
        return outputs


def trains() -> Played:
    """Return the node while it takes part in an attempt."""
    played = Played(NodeMemory("b", EPOCH))
    played.opens()
    return played


def sent(*messages: Join | Meet | Post) -> list[protocol.SendToCoordinator]:
    """Return the outputs that send these."""
    return [protocol.SendToCoordinator(message) for message in messages]


def test_a_connection_begins_with_what_the_node_remembers() -> None:
    played = Played(NodeMemory("b", EPOCH, acted=AGAIN, aside=True))
    assert played.take(protocol.LinkOpened(played.t)) == sent(Join("b", EPOCH, AGAIN, aside=True))


def test_over_the_next_connection_all_is_posted_again_once_the_coordinator_knows_the_attempt() -> None:
    played = trains()
    posts = Post(3, GATHER, "text", 1), Post(3, FAILURE, "failed"), Post(3, REPORT, "seen")
    t = played.t
    assert played.take(protocol.NodeText(t, 1, "text")) == sent(posts[0])
    played.take(protocol.LinkClosed(t))
    assert not played.take(protocol.EndAttempt(t, FAILURE, "failed"))
    assert not played.take(protocol.AttemptReport(t, "seen"))
    assert not [output for output in played.take(protocol.LinkOpened(t)) if output in sent(*posts)]
    assert played.hears(Welcome("a", EPOCH)) == sent(*posts)


def test_a_meeting_is_reported_after_the_welcome_and_again_over_the_next_connection() -> None:
    played = Played()
    assert not played.take(protocol.NodesTogether(played.t, "n", 1, 2, 4))
    meet = Meet("n", 1, 2, 4)
    assert played.opens() == sent(meet)
    played.take(protocol.LinkClosed(played.t))
    assert played.opens() == sent(meet)
    attempt = SharedAttempt(4, ("a", "b"), "a", "n")
    assert played.hears(Began(attempt)) == [protocol.Began(attempt)]
    assert played.state.memory.attempt == attempt
    played.take(protocol.LinkClosed(played.t))
    assert not played.opens(Welcome("a", attempt)), "it has its number"


def test_a_beginning_that_was_lost_with_the_connection_comes_with_the_welcome() -> None:
    played, attempt = Played(), SharedAttempt(4, ("a", "b"), "a", "n")
    played.take(protocol.NodesTogether(played.t, "n", 1, 2, 4))
    assert played.opens(Welcome("a", attempt, END)) == [protocol.Began(attempt), protocol.Ended(4, END)]


def test_an_attempt_of_a_meeting_that_was_given_up_is_void() -> None:
    played = Played()
    played.opens()
    played.take(protocol.NodesTogether(played.t, "n", 1, 2, 4))
    played.take(protocol.MeetingGivenUp(played.t))
    outputs = played.hears(Began(SharedAttempt(4, ("a", "b"), "a", "n")))
    assert outputs == sent(Post(4, VOID, "node b had given the meeting up"))


def test_a_meeting_that_gets_no_number_has_failed() -> None:
    played = Played()
    played.opens()
    played.take(protocol.NodesTogether(played.t, "n", 1, 2, 4))
    (failed,) = played.passes(RULES.meeting_s + 1.0, answered=True)
    assert failed == protocol.MeetingFailed("n", "the meeting of 2 nodes got no number within 90 s")


def test_the_node_acts_once_on_what_the_coordinator_decides() -> None:
    played = trains()
    assert played.hears(Ended(3, END), Ended(3, END)) == [protocol.Ended(3, END)]
    assert played.hears(Decided(3, AGAIN, 2), Decided(3, OVER, 2)) == [protocol.ActOn(EPOCH, AGAIN, 2)]
    assert (played.state.memory.acted, played.state.memory.returning) == (AGAIN, 2)


def test_a_decision_made_without_a_connection_comes_with_the_welcome() -> None:
    played = trains()
    played.take(protocol.LinkClosed(played.t))
    assert played.opens(Welcome("a", EPOCH, END, AGAIN, 1)) == [protocol.ActOn(EPOCH, AGAIN, 1)]


@pytest.mark.parametrize("shared", [NEXT, None, SharedAttempt(3, ("a", "c"), "a", "another")])
def test_a_coordinator_with_another_attempt_makes_the_node_step_aside(shared: SharedAttempt | None) -> None:
    played = trains()
    played.take(protocol.LinkClosed(played.t))
    assert played.opens(Welcome("a", shared)) == [protocol.StepAside(EPOCH)]
    assert played.state.memory.aside
    assert not played.hears(Decided(3, AGAIN, 2)), "it takes no part any more"


def test_a_node_outside_the_attempt_learns_and_remembers_the_end_of_the_job() -> None:
    for played in (Played(), Played(NodeMemory("b", EPOCH, acted=AGAIN)), Played(NodeMemory("b", EPOCH, aside=True))):
        played.opens()
        assert played.hears(Decided(4, AGAIN), Decided(5, OVER), Decided(5, OVER)) == [protocol.ClosedWithoutUs(5, OVER)]
        played.take(protocol.GiveUp(played.t, "it is over"))
        assert played.state.memory.over


def test_a_node_that_gives_up_says_so_and_takes_no_part_any_more() -> None:
    played = trains()
    assert played.take(protocol.GiveUp(played.t, "143")) == sent(Post(3, QUIT, "143"))
    assert played.state.memory.aside
    assert not played.take(protocol.AttemptReport(played.t, "seen"))


def test_texts_of_all_are_reported_once_to_a_node_that_gave_its_own() -> None:
    played = trains()
    assert not played.hears(Gathered(3, 1, ("x", "y")))
    played.take(protocol.NodeText(played.t, 1, "y"))
    assert played.hears(Gathered(3, 1, ("x", "y")), Gathered(3, 1, ("x", "y"))) == [Gathered(3, 1, ("x", "y"))]


def test_looks_are_asked_for_and_posted_and_the_newest_alone_comes_again() -> None:
    played, t = trains(), 100.0
    assert played.take(protocol.AskLooks(t, "stands")) == sent(Post(3, STALLED, "stands", 1))
    played.take(protocol.LinkClosed(t))
    assert not played.take(protocol.AskLooks(t, "stands"))
    assert played.opens() == sent(Post(3, STALLED, "stands", 2))
    assert played.hears(LookWanted(3, 1), LookWanted(3, 1)) == [LookWanted(3, 1)]
    assert played.take(protocol.LookTaken(t, 1, "stack")) == sent(Post(3, LOOK, "stack", 1))
    played.take(protocol.LookTaken(t, 2, "stack"))
    played.take(protocol.LinkClosed(t))
    assert played.opens() == sent(Post(3, LOOK, "stack", 2)), "the round was asked for, so that none is to follow"


# no coordinator


def test_a_coordinator_that_cannot_be_reached_for_10_s_is_silent_unless_own_ranks_end_steps() -> None:
    played = trains()
    played.take(protocol.LinkClosed(played.t))
    assert not played.passes(60.0, stepped_s=1.0)
    (silent,) = played.passes(1.0, stepped_s=10.5)
    assert silent == protocol.CoordinatorSilent(
        3, "the coordinator of the nodes could not be reached for 10 s, and no rank of this node ended a step"
    )
    played = trains()
    played.take(protocol.LinkClosed(played.t))
    assert not played.passes(10.0)
    assert len(played.passes(0.5)) == 1


def test_a_host_of_the_coordinator_that_had_not_answered_is_silent_10_s_after_its_last_word_and_not_after_a_pause_of_the_node() -> None:
    played = trains()
    played.passes(2.0, answered=True)
    assert not played.passes(5.0)
    played.take(protocol.LinkClosed(played.t, 5.0))
    assert not played.passes(5.0)
    assert len(played.passes(0.5)) == 1
    played = trains()
    played.passes(2.0, answered=True)
    played.t += 20.0
    played.passes(0.5)
    played.take(protocol.LinkClosed(played.t, 5.0))
    assert not played.passes(9.0)
    assert len(played.passes(1.5)) == 1


def test_a_connection_that_is_back_within_10_s_is_nothing() -> None:
    played = trains()
    for _ in range(5):
        played.take(protocol.LinkClosed(played.t))
        assert not played.passes(9.5)
        played.opens()


def test_a_coordinator_that_lets_in_and_says_nothing_is_silent_after_60_s() -> None:
    """A stopped process keeps its connections, and its host opens more for it."""
    played = trains()
    for _ in range(10):
        assert not played.passes(6.0)
        played.take(protocol.LinkClosed(played.t))
        played.take(protocol.LinkOpened(played.t))
    assert not played.passes(120.0, stepped_s=0.1), "every rank takes part in a step, so nobody continues without this node"
    (silent,) = played.passes(0.5, stepped_s=10.0)
    text = "the coordinator of the nodes did not answer for 60 s, and no rank of this node ended a step"
    assert silent == protocol.CoordinatorSilent(3, text)


def test_the_pause_of_the_node_itself_counts_for_nobody() -> None:
    played = trains()
    played.passes(2.0, answered=True)
    played.take(protocol.LinkClosed(played.t))
    played.passes(5.0)
    played.t += 90.0
    assert not played.passes(5.0)
    assert len(played.passes(1.0)) == 1


def test_events_after_a_pause_are_not_moved_by_it() -> None:
    played = trains()
    played.passes(2.0, answered=True)
    played.t += 90.0
    played.take(protocol.LinkClosed(played.t))
    assert len(played.passes(11.0)) == 1


def test_steps_that_ended_during_a_pause_are_not_known_at_its_end() -> None:
    played = trains()
    played.passes(2.0, stepped_s=0.5, answered=True)
    played.t += 25.0
    _, outputs = step(played.state, protocol.NodeTick(played.t, "", 25.5, 1.0))
    (beat,) = [output.message for output in outputs if isinstance(output, protocol.SendToCoordinator)]
    assert beat == protocol.Beat(played.t, "", 0.0, 1.0)


def test_after_wait_s_without_a_coordinator_the_ranks_and_the_node_stop() -> None:
    played = trains()
    played.take(protocol.LinkClosed(played.t))
    assert not played.passes(RULES.wait_s, stepped_s=0.1)
    text = "no coordinator of the nodes answered for 600 s"
    assert played.passes(1.0, stepped_s=0.1) == [protocol.CoordinatorSilent(3, text), protocol.CoordinatorGone(text)]


@pytest.mark.parametrize(("reaches", "pause_s", "wait_s"), [(True, 60.0, 60), (False, 10.0, 10)])
def test_a_short_wait_s_makes_no_pause_of_the_coordinator_its_end(*, reaches: bool, pause_s: float, wait_s: int) -> None:
    played = Played(NodeMemory("b", EPOCH), replace(RULES, wait_s=1.0))
    played.opens()
    if not reaches:
        played.take(protocol.LinkClosed(played.t))
    assert not played.passes(pause_s, stepped_s=0.1)
    text = f"no coordinator of the nodes answered for {wait_s} s"
    assert played.passes(0.5, stepped_s=0.1) == [protocol.CoordinatorSilent(3, text), protocol.CoordinatorGone(text)]
