"""The global batch of a run whose nodes come and go: the batch of each attempt, and the reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.machine import decide, initial
from supervisor.core.model import Cause, Change, FailureVerdict, JobDecision, Knob, Plan, PlanKind, Policy, RankInfo
from supervisor.core.policy_settings import NodesSection
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.state import JobState

Kind = TypeVar("Kind")
MICRO, ACCUM = Knob("batch_size", "8", "--batch"), Knob("grad_accum", "1", "--accum")
HOLD = Policy(nodes=3, least_nodes=1, knobs=(MICRO, ACCUM))


class Node:
    """The core of one node, with a shell that lets its nodes meet, agree on no checkpoint, train and fail."""

    def __init__(self, policy: Policy, name: str = "a") -> None:
        self.me = f"{name}/1"
        self.state: JobState = initial()
        self.done: list[act.Action] = []
        self.number = 1
        self.tell(events.SupervisorStarted(0.0, "run", policy))

    def tell(self, event: events.Event) -> None:
        """Give the core an event."""
        self.state, actions = decide(self.state, event)
        self.done += actions

    def meets(self, ranks: int) -> act.SelectCheckpoint:
        """As many ranks have met; returns what this node gives to the agreement."""
        self.done = []
        self.tell(events.NodesGathered(1.0, self.state.attempt.number, 0, 2, self.number, (self.me, "z/1"), ranks))
        return self.of(act.SelectCheckpoint)[0]

    def agrees(self, request: act.SelectCheckpoint, ranks: int) -> dict[str, str]:
        """The nodes take what one of them gave; returns what the attempt runs with."""
        self.tell(
            events.CheckpointSelected(2.0, self.number, None, 0, agreement=self.number, overrides=request.overrides, batch=request.batch)
        )
        self.tell(events.AttemptStarted(3.0, self.number, (RankInfo(0, 0, 1, 1),), ranks))
        return dict(self.of(act.BeginAttempt)[0].overrides)

    def begins(self, ranks: int) -> dict[str, str]:
        """Meet, agree and begin; returns what the attempt runs with."""
        return self.agrees(self.meets(ranks), ranks)

    def fails(self, *changes: Change, nproc: int | None = None) -> None:
        """A node decides for all: what the plan changes."""
        plan = Plan(PlanKind.RESTART, "because", "next", "ladder_step", changes=changes, nproc=nproc)
        decision = JobDecision(FailureVerdict(Cause.CUDA_OOM, 0.9, "it failed", "it"), plan, by=self.me)
        self.tell(events.AttemptEndedByPeer(4.0, self.number, "z/1", "it failed"))
        self.tell(events.AttemptEnded(4.5, self.number, "failed"))
        self.tell(events.DecisionMade(5.0, self.number, "restart", decision))
        self.number += 1

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the actions of a kind since the nodes met."""
        return [action for action in self.done if isinstance(action, kind)]

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Return what people were shown since then."""
        return [(action.level, action.text) for action in self.of(act.PrintMessage)]


def smaller(micro: tuple[str, str], accum: tuple[str, str]) -> tuple[Change, Change]:
    return Change("batch_size", *micro, "--batch"), Change("grad_accum", *accum, "--accum")


def test_with_fewer_nodes_the_accumulation_holds_the_global_batch_and_with_all_of_them_the_command_does() -> None:
    node = Node(HOLD)
    assert node.begins(6) == {}
    assert not node.messages
    node.fails()
    assert node.begins(4) == {"batch_size": "6", "grad_accum": "2"}
    held = "the global batch stays: 6 × 8 × 1 = 48, now 4 × 6 × 2 = 48 (--batch 8 → 6; --accum 1 → 2)"  # noqa: RUF001 (the sign)
    assert node.messages == [("info", held)]
    assert node.of(act.Alert) == [act.Alert("batch_changed", 2, held)]
    node.fails()
    assert node.begins(4) == {"batch_size": "6", "grad_accum": "2"}
    assert not node.messages, "reported once"
    node.fails()
    assert node.begins(6) == {}
    assert node.messages == [("info", "6 ranks again, with the global batch and the values that they had: 6 × 8 × 1 = 48")]  # noqa: RUF001


def test_more_nodes_than_the_run_began_with_get_a_smaller_micro_batch_and_never_a_greater_one() -> None:
    node = Node(replace(HOLD, knobs=(MICRO, replace(ACCUM, value="3"))))
    node.begins(4)
    node.fails()
    assert node.begins(6) == {"grad_accum": "2"}
    node.fails()
    assert node.begins(12) == {"grad_accum": "1"}
    node.fails()
    assert node.begins(24) == {"batch_size": "4", "grad_accum": "1"}


def test_a_micro_batch_that_ran_out_of_memory_stays_small_with_any_number_of_ranks() -> None:
    node = Node(HOLD)
    node.begins(3)
    node.fails()
    assert node.begins(2) == {"batch_size": "6", "grad_accum": "2"}
    node.fails(*smaller(("6", "4"), ("2", "3")))
    assert node.begins(2) == {"batch_size": "4", "grad_accum": "3"}
    node.fails()
    assert node.begins(3) == {"batch_size": "4", "grad_accum": "2"}
    assert "2 × 4 × 3 = 24, now 3 × 4 × 2 = 24" in node.messages[0][1]  # noqa: RUF001


def test_out_of_memory_is_answered_by_what_the_attempt_ran_with_and_not_by_the_command() -> None:
    node = Node(HOLD)
    node.begins(3)
    node.fails()
    node.begins(2)
    evidence = events.Evidence("error_file", "exception", "torch.OutOfMemoryError: CUDA out of memory.", 0, 3.5)
    phase = events.Evidence("heartbeat", "phase", "train", 0)
    step = events.Evidence("heartbeat", "step", "41", 0)
    node.tell(events.RankExited(4.0, 2, events.RankExit(0, 1, 1, code=1)))
    node.tell(events.AttemptEnded(4.1, 2, "failed"))
    node.tell(events.EvidenceCollected(4.2, 2, node.state.incidents, (evidence, phase, step)))
    reports = (events.NodeReport(node.me, node.state.attempt),)
    node.done = []
    node.tell(events.ReportsGathered(4.3, 2, reports, (), "failure", node.me, "rank 0: exit code 1"))
    decision = node.of(act.ProposeDecision)[0].decision
    assert decision is not None
    assert [(c.old, c.new) for c in decision.plan.changes] == [("6", "4"), ("2", "3")]


def test_unequal_gpus_share_the_same_global_batch_with_any_number_of_ranks_and_micro_batch() -> None:
    shared = Knob("grad_accum", "64", "plan:2,1,1", counts="planned")
    node = Node(replace(HOLD, knobs=(MICRO, shared)))
    assert node.begins(4) == {}
    node.fails()
    assert node.begins(3) == {}
    shares = [f"64, shared by {ranks} ranks, 8 at once on the least memory" for ranks in (4, 3)]
    assert node.messages == [("info", f"the global batch stays: {shares[0]}, now {shares[1]}")]
    node.fails(Change("batch_size", "8", "4", "--batch"))
    assert node.begins(3) == {"batch_size": "4"}
    node.fails()
    assert node.begins(4) == {"batch_size": "4"}
    assert [how for how, _ in node.messages] == ["info"]


def test_a_plan_that_leaves_a_rank_out_leaves_the_batch_to_the_meeting() -> None:
    node = Node(HOLD)
    node.begins(3)
    node.fails(*smaller(("8", "6"), ("1", "2")), nproc=1)
    assert node.begins(2) == {"batch_size": "6", "grad_accum": "2"}
    node.fails()
    assert node.begins(3) == {}


UNEVEN = (
    "the global batch is not held, 3 → 5 ranks: 3 × 8 × 1 = 24 is not a multiple of them; the nearest is 5 × 5 × 1 = 25 (--batch 8 → 5)",  # noqa: RUF001
    {"batch_size": "5"},
)


@pytest.mark.parametrize(
    ("policy", "text", "values"),
    [
        (HOLD, *UNEVEN),
        (replace(HOLD, knobs=(MICRO,), likely=(("grad_accum", "--knob grad_accum:1=--accum"),)), "grad_accum:1=--accum holds it", {}),
        (replace(HOLD, knobs=()), "unless the script divides a fixed one: --knob batch_size=--YOUR-FLAG --knob grad_accum", {}),
        (replace(HOLD, batch_change=False), "--no-batch-change forbids to hold it", {}),
        (replace(HOLD, knobs=(MICRO, Knob("grad_accum", "24", "--global", counts="derived"))), "is not a multiple of 5 ranks", {}),
        (replace(HOLD, knobs=(replace(MICRO, value=""), ACCUM)), "is not known: write --batch out", {}),
    ],
    ids=["uneven", "no accumulation", "no knob", "forbidden", "derived", "no value"],
)
def test_an_impossible_global_batch_is_reported_once_and_the_job_continues(policy: Policy, text: str, values: dict[str, str]) -> None:
    node = Node(policy)
    node.begins(3)
    assert not node.messages
    node.fails()
    assert node.begins(5) == values
    ((level, line),) = node.messages
    assert level == "warning"
    assert text in line
    assert line.startswith("the global batch is not held, 3 → 5 ranks: ")
    node.fails()
    node.begins(5)
    assert not node.messages
    node.fails()
    assert node.begins(3) == {}
    assert node.messages[0][1].startswith("3 ranks again, with the global batch")


@pytest.mark.parametrize(
    "policy",
    [
        replace(HOLD, node_rules=NodesSection(batch="ignore")),
        replace(HOLD, knobs=(replace(MICRO, counts="global"),)),
        replace(HOLD, knobs=(MICRO, Knob("grad_accum", "", "--global", counts="derived"))),
        replace(HOLD, knobs=(MICRO, Knob("grad_accum", "48", "--global", counts="derived"))),
    ],
    ids=["ignore", "global", "derived", "derived and known"],
)
def test_a_batch_that_the_program_divides_or_that_is_let_go_is_not_touched(policy: Policy) -> None:
    node = Node(policy)
    node.begins(3)
    node.fails()
    assert node.begins(2) == {}
    assert not [line for line in node.messages if line[0] == "warning"]


def test_with_a_required_global_batch_no_rank_starts_without_it() -> None:
    node = Node(replace(HOLD, node_rules=NodesSection(batch="require")))
    node.begins(3)
    node.fails()
    assert node.begins(2) == {"batch_size": "6", "grad_accum": "2"}, "it is held"
    node.fails()
    taken = node.meets(5)
    node.tell(events.CheckpointSelected(2.0, node.number, None, 0, agreement=node.number, batch=taken.batch))
    assert not node.of(act.BeginAttempt)
    assert [action.kind for action in node.of(act.EndForAll)] == ["failure"]
    wanted = node.state.attempt.stop_wanted
    assert wanted is not None
    assert (wanted.plan.exit_code, wanted.verdict.summary) == (75, UNEVEN[0])


def test_a_node_that_joins_takes_what_the_others_hold() -> None:
    node, late = Node(HOLD), Node(HOLD, "b")
    node.begins(3)
    node.fails()
    late.number = node.number
    given = node.meets(2)
    assert late.meets(2).batch.values == ()
    assert late.agrees(given, 2) == node.agrees(given, 2) == {"batch_size": "6", "grad_accum": "2"}
    node.fails()
    late.fails()
    assert late.meets(3).batch == node.meets(3).batch
