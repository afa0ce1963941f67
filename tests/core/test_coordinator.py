"""The coordinator's core: it judges for all nodes, also for an attempt of others and on its way out; and the nodes where it is gone."""

from __future__ import annotations

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.machine import decide, initial
from supervisor.core.model import Cause, Evidence, Policy, RankInfo
from supervisor.core.state import JobState, NodeReport, Stage
from supervisor.core.values import replace

MEMBERS = ("a/1", "b/1")
POLICY = Policy(nodes=3, least_nodes=1)


class Node:
    """The core of one node."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.state: JobState = initial()
        self.actions: tuple[act.Action, ...] = ()
        self.feed(events.SupervisorStarted(0.0, "run", policy))

    def feed(self, event: events.Event) -> None:
        """Decide on an event."""
        self.state, self.actions = decide(self.state, event)

    def train(self, node: int, number: int = 1) -> None:
        """Meet the other node, and start a rank."""
        attempt = self.state.attempt.number
        self.feed(events.NodesGathered(0.1, attempt, node, 2, number, MEMBERS, 2, "c/1"))
        self.feed(events.CheckpointSelected(0.2, number, None, 0, agreement=number))
        self.feed(events.AttemptStarted(1.0, number, (RankInfo(node, 0, 100 + node, 1),), 2))

    def report(self, signal: int, t: float) -> NodeReport:
        """Fail, and return what is reported."""
        number, (rank,) = self.state.attempt.number, self.state.attempt.ranks
        self.feed(events.RankExited(t, number, events.RankExit(rank.rank, rank.pid, 1, signal=signal)))
        self.feed(events.AttemptEnded(t + 0.1, number, "failed"))
        evidence = Evidence("exit", "signal", str(signal), rank.rank, t=t)
        self.feed(events.EvidenceCollected(t + 0.2, number, self.state.incidents, (evidence,)))
        attempt = self.state.attempt
        return NodeReport(attempt.me, attempt, self.state.gpus, self.state.run)


def reports(number: int = 1) -> tuple[NodeReport, NodeReport]:
    """Return what two members saw, of which the second failed first."""
    nodes = [Node(), Node()]
    for index, node in enumerate(nodes):
        node.train(index, number)
    return nodes[0].report(6, 5.5), nodes[1].report(11, 5.0)


def judged(node: Node, number: int) -> act.ProposeDecision:
    """Have a coordinator judge."""
    before = node.state
    node.feed(events.ReportsGathered(6.0, number, reports(number), (), "failure", "b/1", "rank 1: killed by signal 11"))
    assert node.state == before, "it acts on the decision alone"
    (proposal,) = node.actions
    assert isinstance(proposal, act.ProposeDecision)
    return proposal


def assert_is_of_rank_1(proposal: act.ProposeDecision, number: int) -> None:
    assert (proposal.attempt, proposal.kind) == (number, "restart")
    decision = proposal.decision
    assert decision is not None
    assert (decision.verdict.cause, decision.verdict.rank, decision.verdict.node) == (Cause.SEGFAULT, 1, "b:1")
    assert decision.by == "a/1", "a member alerts"


def test_a_spare_node_judges_an_attempt_in_which_it_takes_no_part() -> None:
    spare = Node()
    assert spare.state.attempt.number == 1
    assert_is_of_rank_1(judged(spare, 7), 7)


def test_a_coordinator_that_is_stopping_judges_until_it_leaves() -> None:
    leaves = Node()
    leaves.train(0)
    leaves.feed(events.StopRequested(4.0, 15))
    assert leaves.state.stage is Stage.STOPPING
    assert_is_of_rank_1(judged(leaves, 1), 1)
    leaves.feed(events.AttemptEnded(5.0, 1, "stopped"))
    assert leaves.state.stage is Stage.ENDED
    assert_is_of_rank_1(judged(leaves, 1), 1)


def waits_in_vain(policy: Policy) -> act.ReportDecision:
    node = Node(policy)
    node.train(1)
    node.feed(events.CoordinatorFellSilent(5.0, 1))
    node.feed(events.AttemptEnded(5.5, 1, "failed"))
    node.feed(events.EvidenceCollected(5.6, 1, node.state.incidents, ()))
    (timer,) = (action for action in node.actions if isinstance(action, act.SetTimer))
    assert (timer.name, timer.delay_s) == ("decision", 600.0)
    node.feed(events.TimerFired(605.6, timer.name, timer.token))
    (finish,) = (action for action in node.actions if isinstance(action, act.Finish))
    assert (finish.exit_code, finish.for_all) == (75, False)
    (decision,) = (action for action in node.actions if isinstance(action, act.ReportDecision))
    return decision


def test_a_coordinator_that_is_gone_for_good_ends_each_node_with_75_and_the_card_says_what_to_start_where() -> None:
    decision = waits_in_vain(POLICY)
    assert decision.verdict.summary == "no decision came from the coordinator within 600 s (nodes.wait_s); it was on node c"
    assert (
        "start the same command again on every node, beginning with node c or the node that replaces it" in decision.plan.next_ladder_step
    )


def stopped(node: Node) -> tuple[int, act.ReportDecision]:
    (decision,) = (action for action in node.actions if isinstance(action, act.ReportDecision))
    (finish,) = (action for action in node.actions if isinstance(action, act.Finish))
    assert not finish.for_all
    return finish.exit_code, decision


def test_a_node_that_the_coordinator_refuses_stops_with_78_and_a_card_with_its_words() -> None:
    node = Node()
    node.feed(events.NodeCutOff(2.0, 1, "it speaks version 1, and the coordinator version 2: install the same", is_refused=True))
    code, decision = stopped(node)
    assert code == 78
    assert "refuses this node: it speaks version 1, and the coordinator version 2" in decision.verdict.summary
    assert decision.plan.next_ladder_step == "install the same"


def test_without_a_coordinator_a_waiting_node_stops_with_75_and_a_training_one_continues() -> None:
    gone = "no coordinator answered for 600 s"
    trains, waits = Node(), Node()
    trains.train(0)
    trains.feed(events.NodeCutOff(700.0, 1, gone))
    assert trains.state.stage is Stage.RUNNING
    waits.feed(events.NodeCutOff(700.0, 1, gone))
    code, decision = stopped(waits)
    assert (code, decision.verdict.summary) == (75, gone)


def test_under_a_scheduler_its_requeue_continues_the_run() -> None:
    assert waits_in_vain(replace(POLICY, is_scheduled=True)).plan.next_ladder_step == "the scheduler's requeue continues this run"
