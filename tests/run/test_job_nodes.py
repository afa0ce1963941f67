"""Two nodes of a job, each with the real core and the real protocol, over real sockets: one number, one decision, one end."""

from __future__ import annotations

import queue
import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.agent.messages import NodesMet
from supervisor.cluster import messages as protocol
from supervisor.cluster.client import CoordinatorAddress
from supervisor.cluster.model import SUCCESS, ClusterDecision, CoordinatorMemory
from supervisor.config.settings import Settings
from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.machine import decide
from supervisor.core.model import Cause, CheckpointRef, Claim, Evidence, Policy, RankExit, RankInfo
from supervisor.core.state import Attempt, JobState, Stage
from supervisor.core.values import replace
from supervisor.job.clock import Clock
from supervisor.run.job_nodes import AttemptOrders, JobNodes
from supervisor.run.main import JobRun
from supervisor.run.own_coordinator import BUGS_APART_S
from tests.support.idle_job import make_job
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Under which the nodes meet.
ID = "job"


class Node:
    """One supervisor: its loop is turned by the test. ahead_s: of its clock."""

    def __init__(self, place: Path, name: str, ahead_s: float = 0.0) -> None:
        self.place, self.name = place / name, name
        self.state = JobState()
        self.clock = replace(Clock.start(), wall_at_start=Clock.start().wall_at_start + ahead_s)
        self.soon: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.actions: list[act.Action] = []
        self.taken: list[Any] = []
        self.orders: list[tuple[Any, ...]] = []
        self.messages: list[str] = []
        self.call_soon = self.soon.put
        self.nodes = self.fresh()

    def fresh(self, rdzv_id: str = ID) -> JobNodes:
        """Return what a supervisor of this run begins with."""
        kinds = ("publish", "renumber", "complete", "last_word")
        orders = AttemptOrders(*(lambda *arguments, kind=kind: self.orders.append((kind, *arguments)) for kind in kinds))  # type: ignore[misc]
        job = replace(make_job(self.place, Settings()), run_id=f"run of {self.name}", node=self.name)
        return JobNodes(job, rdzv_id, self, orders, self.messages.append)  # type: ignore[arg-type]  # a loop, as far as it is used

    def feed(self, event: events.Event) -> None:
        """Decide, as the loop does."""
        self.taken.append(event)
        self.state, actions = decide(self.state, event)
        do = {
            act.EndForAll: self.nodes.end_attempt,
            act.ReportAttempt: self.nodes.report,
            act.ProposeDecision: self.nodes.propose,
            act.CompleteAttempt: self.nodes.complete,
        }
        for action in actions:
            self.actions.append(action)
            if type(action) in do:
                do[type(action)](action)  # type: ignore[operator]

    def turn(self) -> None:
        """Do what waits, and let time pass."""
        while not self.soon.empty():
            self.soon.get()()
        self.nodes.tick()

    def find(self, kind: type[Any]) -> list[Any]:
        """Return the events or actions of one kind."""
        return [action for action in (*self.taken, *self.actions) if isinstance(action, kind)]


class Pair:
    """Two nodes; the first is the coordinator."""

    def __init__(self, place: Path) -> None:
        self.nodes = [Node(place, "a"), Node(place, "b", ahead_s=3600.0)]

    def until(self, look: Callable[[], Any], arguments: str) -> None:
        """Turn both loops until something is so."""

        def turned() -> object:
            for node in self.nodes:
                node.turn()
            return look()

        wait_for(turned, arguments, 60)

    def meet(self, token: str, *numbers: int, at: tuple[str, int, str] | None = None) -> None:
        """The agents meet, each for the attempt that it knows. at: where the coordinator is, None: on the first node."""
        policy = Policy(nodes=2, checkpoints_declared=True)
        nodes = self.nodes[: len(numbers)]
        for index, (node, number) in enumerate(zip(nodes, numbers, strict=True)):
            attempt = Attempt(number, awaits_agreement=True)
            node.state = replace(node.state, stage=Stage.STARTING, attempt=attempt, run=replace(node.state.run, policy=policy))
            place = at or (("", 0, "") if not index else ("127.0.0.1", *self.served[1:]))
            node.nodes.met(NodesMet(number, index, 2, token, *place))  # type: ignore[arg-type]
        self.until(lambda: all(node.state.attempt.members for node in nodes), "the number")

    @property
    def served(self) -> tuple[Any, ...]:
        """Return attempt, port and key of the coordinator."""
        return next(tuple(row[1:]) for row in self.nodes[0].orders if row[0] == "publish")

    def train(self) -> None:
        """Agree, and start the ranks."""
        for rank, node in enumerate(self.nodes[:2]):
            number, chosen = node.state.attempt.number, CheckpointRef("c.pt", 60, "structure")
            node.feed(events.CheckpointSelected(node.clock.now(), number, chosen, 1, agreement=number))
            node.feed(events.AttemptStarted(node.clock.now(), number, (RankInfo(rank, 0, 100 + rank, 1),), 2))

    def gone(self, node: Node, rank: int, *facts: Evidence) -> None:
        """The ranks of a node are gone, and its evidence is there."""
        number, now = node.state.attempt.number, node.clock.now()
        node.feed(events.AttemptEnded(now, number, "failed"))
        node.feed(events.EvidenceCollected(now, number, 1, (Evidence("heartbeat", "step", f"{64 + rank}", rank), *facts)))

    def close(self) -> None:
        """End both."""
        for node in reversed(self.nodes):
            node.nodes.close("the test is over", lambda: None)
        for node in self.nodes:
            for part in (node.nodes._client, node.nodes._coordinator.server):  # noqa: SLF001  to wait for their threads
                if part is not None:
                    part._thread.join(PATIENCE_S)  # noqa: SLF001


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Return two nodes."""
    pair = Pair(tmp_path)
    yield pair
    pair.close()


def test_both_nodes_act_on_one_decision_about_what_both_saw_by_whichever_clock(pair: Pair) -> None:
    first, second = pair.nodes
    pair.meet("t", 1, 4)
    assert [node.state.attempt.number for node in pair.nodes] == [4, 4]
    assert ("renumber", 1, 4) in first.orders
    assert not [row for row in second.orders if row[0] == "renumber"]
    pair.train()
    # rank 1 died first, although the clock of its node is an hour ahead; rank 0 lost its connection a moment later
    now = second.clock.now()
    second.feed(events.RankExited(now, 4, RankExit(1, 101, 1, signal=11)))
    pair.until(lambda: first.state.stage is Stage.TEARDOWN, "the end on the other node")
    assert first.find(act.StopRanks)[0].text == "rank 1: killed by signal 11"
    pair.gone(first, 0, Evidence("exit", "signal", "6", 0, t=first.clock.now() + 0.1))
    pair.gone(second, 1, Evidence("exit", "signal", "11", 1, t=now))
    pair.until(lambda: all(node.find(act.ReportDecision) for node in pair.nodes), "the decision")
    decisions = [node.find(act.ReportDecision)[0] for node in pair.nodes]
    assert decisions[0].verdict == decisions[1].verdict
    assert (decisions[0].verdict.rank, decisions[0].verdict.node, decisions[0].step) == (1, "b:1", 65)
    assert [decision.alerts for decision in decisions] == [True, False], "one alert for the job"
    assert [len(node.state.run.failures) for node in pair.nodes] == [1, 1]
    decided = [node.find(events.DecisionMade)[0].decision for node in pair.nodes]
    assert decided[0] == decided[1]
    assert len(first.find(events.ReportsGathered)) == 1
    assert not second.find(events.ReportsGathered)


def test_a_report_of_the_next_version_is_taken_as_far_as_it_is_understood(pair: Pair) -> None:
    """It knows one cause more. Two versions may meet while the nodes of a cluster are updated one by one."""
    first, second = pair.nodes
    pair.meet("t", 1, 1)
    pair.train()
    cause: Any = "new_in_the_next_version"
    now = second.clock.now()
    second.feed(events.RankExited(now, 1, RankExit(1, 101, 1, signal=11)))
    pair.until(lambda: first.state.stage is Stage.TEARDOWN, "the end on the other node")
    pair.gone(first, 0)
    signal_fact = Evidence("exit", "signal", "11", 1, t=now)
    pair.gone(second, 1, signal_fact, Evidence("log", "new.signature", "a line that only it knows", 1, t=now, claim=Claim(cause, 0.9)))
    pair.until(lambda: all(node.find(act.ReportDecision) for node in pair.nodes), "the decision")
    assert {node.find(act.ReportDecision)[0].verdict.rank for node in pair.nodes} == {1}


def test_the_guardian_of_a_node_gets_a_word_for_the_coordinator_and_that_of_the_coordinator_none(pair: Pair) -> None:
    pair.meet("t", 1, 1)
    first, second = pair.nodes
    pair.until(lambda: [row for row in second.orders if row[0] == "last_word"], "the prepared word")
    (word,) = (row for row in second.orders if row[0] == "last_word")
    assert word[1:3] == ("127.0.0.1", pair.served[1])
    pair.train()
    second.nodes._client.close(5.0)  # type: ignore[union-attr]  # noqa: SLF001  as a process that is gone
    second.nodes._client = None  # noqa: SLF001
    with socket.create_connection(word[1:3]) as guardian:
        guardian.sendall(word[3].encode())
        pair.until(lambda: first.state.stage is Stage.TEARDOWN, "the end on the other node")
    (end,) = first.find(events.AttemptEndedByPeer)
    assert (end.node, end.text) == (f"{second.state.attempt.me}", "its supervise died, and its processes are ended")
    assert not [row for row in first.orders if row[0] == "last_word"]


def test_a_leaving_coordinator_decides_the_next_attempt(pair: Pair) -> None:
    first, second = pair.nodes
    pair.meet("t", 1, 1)
    pair.train()
    first.feed(events.StopRequested(first.clock.now(), 15))
    first.feed(events.AttemptEnded(first.clock.now(), 1, "stopped"))
    (finish,) = first.find(act.Finish)
    left: list[bool] = []
    first.nodes.close(finish.reason, lambda: left.append(True))
    pair.until(lambda: second.state.stage is Stage.TEARDOWN, "the end on the other node")
    pair.gone(second, 1)
    pair.until(lambda: second.find(act.ReportDecision), "the decision")
    (decision,) = second.find(act.ReportDecision)
    assert (decision.verdict.cause, decision.verdict.node, decision.alerts) == (Cause.NODE_LOST, "a:0", True)
    assert len(first.find(events.ReportsGathered)) == 1
    assert not first.find(act.ReportDecision)
    pair.until(lambda: left, "the coordinator to leave once the other knows")


def test_a_coordinator_outside_the_attempt_decides_about_it(pair: Pair, tmp_path: Path) -> None:
    spare = Node(tmp_path, "c")
    client = spare.nodes._connected(None)  # noqa: SLF001
    server = spare.nodes._coordinator.serve(client.name, spare.nodes._rules(), CoordinatorMemory())  # noqa: SLF001
    client.find_at(CoordinatorAddress("127.0.0.1", server.port, server.key))
    pair.nodes.append(spare)
    try:
        pair.meet("t", 1, 1, at=("127.0.0.1", server.port, server.key))
        pair.train()
        first, second = pair.nodes[:2]
        now = second.clock.now()
        second.feed(events.RankExited(now, 1, RankExit(1, 101, 1, signal=11)))
        pair.until(lambda: first.state.stage is Stage.TEARDOWN, "the end on the other node")
        pair.gone(first, 0)
        pair.gone(second, 1, Evidence("exit", "signal", "11", 1, t=now))
        pair.until(lambda: all(node.find(act.ReportDecision) for node in (first, second)), "the decision")
        decisions = [node.find(act.ReportDecision)[0] for node in (first, second)]
        assert decisions[0].verdict == decisions[1].verdict
        assert (decisions[0].verdict.rank, decisions[0].verdict.node) == (1, "b:1")
        assert [decision.alerts for decision in decisions] == [True, False], "one alert for the job"
        assert first.find(events.NodesGathered)[0].coordinator == client.name
    finally:
        pair.close()


def test_a_restarted_coordinator_continues_with_one_decision(pair: Pair) -> None:
    first, second = pair.nodes
    pair.meet("t", 1, 1)
    pair.train()
    pair.until(lambda: all(node.nodes._client.offset_s is not None for node in pair.nodes), "the nodes at the coordinator")  # type: ignore[union-attr]  # noqa: SLF001
    before, port = first.nodes, pair.served[1]
    before._client.close(5.0)  # type: ignore[union-attr]  # noqa: SLF001  as a process that is gone
    before._coordinator.server.close(0.0)  # type: ignore[union-attr]  # noqa: SLF001
    first.nodes = first.fresh()
    first.nodes.take_over()
    assert first.nodes._coordinator.server is not None  # noqa: SLF001
    assert first.nodes._coordinator.server.port == port  # noqa: SLF001
    first.feed(events.SupervisorStarted(first.clock.now(), "run", first.state.run.policy, continues=True))
    pair.until(lambda: second.state.stage is Stage.TEARDOWN, "the end on the other node")
    pair.gone(second, 1)
    pair.until(lambda: all(node.find(act.ReportDecision) for node in pair.nodes), "the decision")
    decided = [[event.decision for event in node.find(events.DecisionMade)] for node in pair.nodes]
    assert decided[0] == decided[1]
    assert len(decided[0]) == 1
    assert decided[0][0].verdict.summary == "node a:0 is lost: its supervise died, and its ranks with it"


def test_a_coordinator_that_dies_after_the_reports_and_before_its_decision_decides_once_it_is_back(pair: Pair) -> None:
    first, second = pair.nodes
    pair.meet("t", 1, 1)
    pair.train()
    now = second.clock.now()
    second.feed(events.RankExited(now, 1, RankExit(1, 101, 1, signal=11)))
    pair.until(lambda: first.state.stage is Stage.TEARDOWN, "the end on the other node")
    pair.gone(first, 0)
    pair.gone(second, 1, Evidence("exit", "signal", "11", 1, t=now))
    before = first.nodes
    wait_for(lambda: before._coordinator.server._state.is_judged, "the reports at its core, whose loop stands still")  # type: ignore[union-attr]  # noqa: SLF001
    before._client.close(5.0)  # type: ignore[union-attr]  # noqa: SLF001  as a process that is gone
    before._coordinator.server.close(0.0)  # type: ignore[union-attr]  # noqa: SLF001
    first.soon = queue.SimpleQueue()
    first.call_soon = first.soon.put
    first.nodes = first.fresh()
    first.nodes.take_over()
    first.feed(events.SupervisorStarted(first.clock.now(), "run", first.state.run.policy, continues=True))
    pair.until(lambda: all(node.find(act.ReportDecision) for node in pair.nodes), "the decision")
    decided = [[event.decision for event in node.find(events.DecisionMade)] for node in pair.nodes]
    assert decided[0] == decided[1]
    assert len(decided[0]) == 1


def test_a_node_whose_coordinator_is_gone_for_good_stops_with_75_once_its_ranks_are_gone(pair: Pair) -> None:
    first, second = pair.nodes
    pair.meet("t", 1, 1)
    pair.train()
    pair.until(lambda: second.nodes._client.offset_s is not None, "an answer of the coordinator")  # type: ignore[union-attr]  # noqa: SLF001
    first.nodes._coordinator._serves_again_t = float("inf")  # noqa: SLF001
    first.nodes._coordinator.server.close(0.0)  # type: ignore[union-attr]  # noqa: SLF001
    pair.until(lambda: second.nodes._client.offset_s is None, "the closed connection")  # type: ignore[union-attr]  # noqa: SLF001
    text = "no coordinator of the nodes answered for 600 s"
    for output in (protocol.CoordinatorSilent(1, text), protocol.CoordinatorGone(text)):  # as after that time
        second.nodes._emitted(output)  # noqa: SLF001
    pair.until(lambda: second.state.stage is Stage.TEARDOWN, "its ranks to be ended")
    pair.gone(second, 1)
    pair.until(lambda: second.find(act.Finish), "its end")
    assert [action.exit_code for action in second.find(act.Finish)] == [75]
    (decision,) = second.find(act.ReportDecision)
    assert decision.verdict.summary == f"{text}; it was on node a:0"
    assert (
        "start the same command again on every node, beginning with node a:0 or the node that replaces it" in decision.plan.next_ladder_step
    )


def test_a_node_with_the_key_of_another_job_stops_with_78_and_the_words_of_the_coordinator(pair: Pair) -> None:
    first, second = pair.nodes
    pair.meet("t", 1, 1)
    second.nodes.close("it begins anew", lambda: None)
    other = Node(second.place, "c")
    pair.nodes.append(other)
    policy = Policy(nodes=2, checkpoints_declared=True)
    attempt = Attempt(1, awaits_agreement=True)
    other.state = replace(other.state, stage=Stage.STARTING, attempt=attempt, run=replace(other.state.run, policy=policy))
    other.nodes.met(NodesMet(1, 1, 2, "t2", "127.0.0.1", pair.served[1], "another"))
    pair.until(lambda: other.find(act.Finish), "its end")
    assert [action.exit_code for action in other.find(act.Finish)] == [78]
    (decision,) = other.find(act.ReportDecision)
    assert "refuses this node: " in decision.verdict.summary
    assert "the --rdzv-endpoint of its job" in decision.verdict.summary
    assert any("of its job" in text for text in first.messages), (first.messages, "both sides are told")


def test_success_is_that_of_all_nodes_and_is_known_to_all_before_the_first_leaves(pair: Pair) -> None:
    pair.meet("t", 1, 1)
    pair.train()
    pair.nodes[0].nodes.done(1)
    for _ in range(20):
        pair.nodes[0].turn()
    assert not pair.nodes[0].find(events.DecisionMade)
    pair.nodes[1].nodes.done(1)
    pair.until(lambda: all(("complete", 1) in node.orders for node in pair.nodes), "success")


def test_a_coordinator_whose_thread_is_not_to_be_had_is_served_a_moment_later(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, ["coordinator"]

    def started(thread: threading.Thread) -> None:
        if thread.name in refused:
            refused.remove(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    pair.meet("t", 1, 1)
    assert not refused
    assert pair.nodes[0].nodes._coordinator.server.port == pair.served[1], "where the agents of the others were sent"  # type: ignore[union-attr]  # noqa: SLF001


def test_a_coordinator_whose_thread_dies_of_a_bug_is_served_anew_with_its_memory(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair.nodes
    pair.meet("t", 1, 1)
    pair.train()
    pair.until(lambda: all(node.nodes._client.address for node in pair.nodes), "the nodes at the coordinator")  # type: ignore[union-attr]  # noqa: SLF001
    died: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    monkeypatch.setattr(first.nodes._coordinator.server, "_drop_strangers", None)  # noqa: SLF001
    wait_for(lambda: died, "the end of its thread")
    second.feed(events.RankExited(second.clock.now(), 1, RankExit(1, 101, 1, signal=11)))
    pair.until(lambda: first.state.stage is Stage.TEARDOWN, "the end on the other node")
    pair.gone(first, 0)
    pair.gone(second, 1, Evidence("exit", "signal", "11", 1, t=second.clock.now()))
    pair.until(lambda: all(node.find(act.ReportDecision) for node in pair.nodes), "the decision")
    assert {node.find(act.ReportDecision)[0].verdict.rank for node in pair.nodes} == {1}
    assert len(died) == 1


def test_a_bug_that_comes_again_with_each_coordinator_ends_the_run_unless_something_is_decided_in_between(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair.nodes
    failed: list[BaseException] = []
    run = SimpleNamespace(loop=SimpleNamespace(fail=failed.append, call_soon=first.call_soon), executor=first)
    run.terminal = SimpleNamespace(message=lambda text, _kind: first.messages.append(text))
    monkeypatch.setattr(threading, "__excepthook__", lambda _args: None)
    monkeypatch.setattr(threading, "excepthook", lambda args: JobRun._thread_failed(run, args))  # type: ignore[arg-type]  # noqa: SLF001

    def dies() -> None:
        server = first.nodes._coordinator.server  # noqa: SLF001
        assert server is not None
        monkeypatch.setattr(server, "_drop_strangers", None)
        wait_for(lambda: not server.serves, "the end of its thread")
        first.nodes._coordinator._serves_again_t = 0.0  # noqa: SLF001  it is time
        pair.until(lambda: first.nodes._coordinator.server is not server, "another coordinator")  # noqa: SLF001

    pair.meet("t", 1, 1)
    pair.train()
    dies()
    dies()
    second.feed(events.RankExited(second.clock.now(), 1, RankExit(1, 101, 1, signal=11)))
    pair.until(lambda: first.state.stage is Stage.TEARDOWN, "the end on the other node")
    pair.gone(first, 0)
    pair.gone(second, 1, Evidence("exit", "signal", "11", 1, t=second.clock.now()))
    pair.until(lambda: all(node.find(act.ReportDecision) for node in pair.nodes), "the decision")
    dies()
    dies()
    assert not failed
    assert [text.rpartition("; ")[2] for text in first.messages] == ["the job continues"] * 4
    first.nodes._coordinator._bug_t -= BUGS_APART_S  # noqa: SLF001  a healthy attempt continues without a decision
    dies()
    dies()
    assert not failed
    assert first.nodes._coordinator.bugs == 2  # noqa: SLF001
    dies()
    assert [type(error) for error in failed] == [TypeError]
    pair.until(lambda: len(first.nodes.standings()) == 2, "the nodes at the last coordinator: it need not linger for them")


def test_a_supervisor_that_takes_over_finds_the_others_by_itself_and_ends_its_attempt(pair: Pair) -> None:
    first, second = pair.nodes
    pair.meet("t", 1, 1)
    pair.train()
    second.nodes.tick()
    before, second.nodes = second.nodes, second.fresh()
    before._client.close(5.0)  # type: ignore[union-attr]  # noqa: SLF001  as a process that is gone
    second.nodes.take_over()
    started = events.SupervisorStarted(second.clock.now(), "run", second.state.run.policy, continues=True)
    second.feed(started)
    pair.until(lambda: first.state.stage is Stage.TEARDOWN, "the end on the other node")
    pair.gone(first, 0)
    pair.until(lambda: all(node.find(act.ReportDecision) for node in pair.nodes), "the decision")
    assert {node.find(act.ReportDecision)[0].verdict.summary for node in pair.nodes} == {
        "node b:1 is lost: its supervise died, and its ranks with it"
    }


@pytest.mark.parametrize("text", ["the decision", "nothing", "of another meeting"])
def test_a_supervisor_that_takes_over_acts_at_once_where_nobody_awaits_its_report(pair: Pair, text: str) -> None:
    first, second = pair.nodes
    pair.meet("t", 1, 1)
    pair.train()
    first.feed(events.RankExited(first.clock.now(), 1, RankExit(0, 100, 1, signal=11)))
    pair.until(lambda: second.state.stage is Stage.TEARDOWN, "the end on the other node")
    pair.gone(second, 1)
    pair.gone(first, 0, Evidence("exit", "signal", "11", 0, t=first.clock.now()))
    file = second.place / "state" / "cluster" / "node.json"

    def is_kept() -> bool:
        """Whether the second node's part has the decision; its loop stands still, and does not see it."""
        first.turn()
        second.nodes.tick()
        return '"acted": null' not in file.read_text()

    wait_for(is_kept, "the decision in the file")
    second.nodes._client.close(5.0)  # type: ignore[union-attr]  # noqa: SLF001  as a process that is gone
    second.soon = queue.SimpleQueue()
    second.call_soon = second.soon.put
    if text == "nothing":  # as after a disk that was full, or on a node that the journal came along to
        file.unlink()
    second.nodes = second.fresh(rdzv_id="job.1" if text == "of another meeting" else ID)  # as a job of Slurm that was requeued
    second.nodes.take_over()
    second.feed(events.SupervisorStarted(second.clock.now(), "run", second.state.run.policy, continues=True))
    assert second.state.stage is Stage.FOLLOWING
    second.turn()
    assert second.state.stage is not Stage.FOLLOWING
    assert bool(second.find(events.DecisionMade)) is (text == "the decision")
    assert bool(second.find(events.LeftBehind)) is (text != "the decision")
    returning = 2 if text == "the decision" else 0
    assert second.nodes.returning == returning
    if second.nodes._client is not None:  # noqa: SLF001
        second.nodes._client.close(5.0)  # noqa: SLF001  this one ends too, before they meet
    second.nodes = second.fresh(rdzv_id=second.nodes._owner.rdzv_id)  # noqa: SLF001
    second.nodes.take_over()
    assert second.nodes.returning == returning


def test_a_job_of_one_node_has_no_thread_no_socket_and_no_file(tmp_path: Path) -> None:
    node = Node(tmp_path, "a")
    node.nodes.take_over()
    node.turn()
    left: list[bool] = []
    node.nodes.close("done", lambda: left.append(True))
    assert left == [True]
    assert (node.nodes._client, node.nodes._coordinator.server) == (None, None)  # noqa: SLF001
    assert not node.place.exists()


def test_a_node_that_learns_the_end_of_the_job_while_it_still_examines_itself_ends_as_the_job_did(tmp_path: Path) -> None:
    node = Node(tmp_path, "a")
    policy = Policy(nodes=2, checkpoints_declared=True)
    node.state = replace(node.state, stage=Stage.CHECKING, run=replace(node.state.run, policy=policy))
    client = node.nodes._connected(None)  # noqa: SLF001
    try:
        node.nodes._emitted(protocol.ClosedWithoutUs(3, ClusterDecision(SUCCESS)))  # noqa: SLF001
        node.turn()
        assert not node.taken, "it cannot be taken yet"
        node.state = replace(node.state, stage=Stage.STARTING, attempt=Attempt(1, awaits_agreement=True))
        node.turn()
        node.turn()
        (end,) = node.find(events.DecisionMade)
        assert (end.kind, end.elsewhere) == (SUCCESS, True)
        assert [action.exit_code for action in node.find(act.Finish)] == [0]
    finally:
        client.close(1.0)
