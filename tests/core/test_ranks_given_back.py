"""A loader refuses what more ranks saved: two nodes give back their ranks together, and each examines its GPUs before it begins."""

from __future__ import annotations

import pytest

from supervisor.core import events
from supervisor.core.attempt import setups
from supervisor.core.failure import planning
from supervisor.core.health import findings
from supervisor.core.model import (
    Cause,
    Claim,
    Evidence,
    FailureVerdict,
    Finding,
    Gpu,
    JobDecision,
    Launcher,
    Plan,
    PlanKind,
    Policy,
    RankExit,
    RankInfo,
)
from supervisor.core.nodes import joint_decision
from supervisor.core.setup_model import Setup
from supervisor.core.state import Attempt, Incident, JobState, NodeReport, Run
from supervisor.core.values import replace
from tests.support.policies import policy_from

MEMBERS = ("a/1", "b/1")
FREE = (Gpu(0, "GPU-0"), Gpu(1, "GPU-1"))
OUT = (FREE[0], replace(FREE[1], quarantined="xid 79"))
SAID = Evidence(
    "error_file",
    "checkpoint_mismatch.world_size",
    "ZeRORuntimeException: The checkpoint being loaded used a DP world size of 4 but the current world size is 3",
    0,
    t=5.0,
    fields=(("saved", "4"), ("current", "3")),
    claim=Claim(Cause.CHECKPOINT_MISMATCH, 0.95),
)


def node(name: str, gpus: tuple[Gpu, ...], gpus_now: tuple[Gpu, ...], nproc: int | None) -> JobState:
    """A node in its third attempt, of 3 ranks, where the first one trained with 4."""
    first = {"a/1": 0, "b/1": 2}[name]
    ranks = tuple(RankInfo(first + place, place, 100 + place, 1) for place in range(nproc or 2))
    attempt = Attempt(
        3,
        members=MEMBERS,
        me=name,
        ranks=ranks,
        world_size=3,
        met_ranks=3,
        ended=True,
        deaths=(RankExit(first, 100, 1, code=1),),
        evidence=(SAID,) if name == "a/1" else (),
        gpus_now=gpus_now,
    )
    run = Run("run", Policy(nodes=2), nproc=nproc, trained_in=1, starts_with=Setup(1, nodes=2, ranks=4), command_nproc=2)
    return JobState(run, attempt=attempt, gpus=gpus)


def decided(b_now: tuple[Gpu, ...]) -> tuple[JobState, JobDecision]:
    """Node b, of which a GPU was taken out of use, and what both decide."""
    a, b = node("a/1", FREE, (), None), node("b/1", OUT, b_now, 1)
    reports = tuple(NodeReport(state.attempt.me, state.attempt, state.gpus, state.run) for state in (a, b))
    return b, joint_decision.decided(a, events.ReportsGathered(6.0, 3, reports, (), "failure", "a/1", "rank 0: exit code 1"))


def test_the_ranks_of_all_nodes_come_back_with_the_last_gpu() -> None:
    b, decision = decided(FREE)
    assert (decision.plan.kind, decision.plan.strategy, decision.plan.rejected) == (PlanKind.RESTART, "own_change", ())
    after, _ = planning.folded(b, replace(decision, by="a/1"), 7.0)
    assert (after.run.nproc, after.gpus, after.run.all_ranks) == (None, FREE, True)


def test_a_gpu_of_another_node_that_is_still_out_of_use_ends_the_run() -> None:
    _, decision = decided(OUT)
    assert (decision.plan.kind, decision.plan.exit_code, decision.plan.rejected) == (PlanKind.STOP, 69, ())
    assert decision.plan.reason == "the program saved with 4 ranks and loads with 4 only; 3 are left here"


def test_a_run_knows_its_earlier_world_size_though_the_loader_names_none() -> None:
    b, _ = decided(OUT)
    run = replace(b.run, starts_with=Setup(3, nodes=2, ranks=3), policy=replace(b.run.policy, nodes=2))
    unnamed = FailureVerdict(Cause.CHECKPOINT_MISMATCH, 0.95, "", "", because=(SAID,))
    place = planning.Place(1, before_first_step=False, phase=planning.Phase.TRAIN)
    resized = planning.situation(replace(b, run=run), 6.0, unnamed, place).resized
    assert resized is not None
    assert (resized.before.ranks, resized.before.nodes, resized.now.ranks) == (4, 2, 3)


def resized(now: Setup, started: Setup, *, nodes: int = 2, words: tuple[str, str] = ("", ""), trained: int = 1) -> tuple[int, int] | None:
    """Nodes and ranks that saved, as the run knows them when its fifth attempt failed; None where the ranks are the user's own."""
    run = Run("run", Policy(nodes=nodes), trained_in=trained, starts_with=started)
    members = tuple(f"{place}/1" for place in range(now.nodes))
    state = JobState(run, attempt=Attempt(5, members=members, world_size=now.ranks))
    facts = tuple(zip(("saved", "current"), words, strict=True))
    change = setups.resized(state, FailureVerdict(Cause.CHECKPOINT_MISMATCH, 0.95, "", "", because=(SAID,), facts=facts))
    return None if change is None else (change.before.nodes, change.before.ranks)


def test_how_many_saved_is_known_by_words_then_by_what_trained_then_by_the_command() -> None:
    small, large = Setup(1, nodes=1, ranks=4), Setup(1, nodes=2, ranks=8)
    assert resized(small, large) == (2, 8), "a node was lost"
    assert resized(large, small) == (1, 4), "a node came back"
    assert resized(small, Setup(0)) == (2, 8), "the first attempt of a run that may have two nodes has one"
    assert resized(small, replace(small, attempt=4)) == (2, 8), "the attempt before had one node too, and made a step"
    assert resized(small, large, words=("4", "2")) == (2, 8), "replicas of two ranks each"
    assert resized(small, large, words=("16", "4")) == (4, 16)
    assert resized(small, Setup(0), nodes=1, words=("8", "4")) is None, "the user's command has four"
    assert resized(large, small, trained=0) is None, "what made no step has saved nothing"
    assert resized(large, large, words=("16", "8")) is None, "the user changed it before this run"


@pytest.mark.parametrize("given_back", [True, False])
def test_a_gpu_that_comes_back_is_examined_before_its_rank_begins(*, given_back: bool) -> None:
    verdict = FailureVerdict(Cause.CHECKPOINT_MISMATCH, 0.95, "", "")
    plan = Plan(PlanKind.RESTART, "", "", "own_change", all_ranks=given_back)
    incident = Incident(1, 0.0, "", verdict=verdict, plan=plan)
    state = JobState(Run("run", Policy(), reason="failure", incident=incident, reported_findings=()))
    assert findings.known_findings(state) == (None if given_back else ())


@pytest.mark.parametrize("launcher", ["elastic", "plain"])
def test_a_gpu_that_is_found_bad_again_ends_the_run_before_a_rank(launcher: str) -> None:
    policy = replace(policy_from({"gpus": {"minimum": 1}, "restart": {"batch_drift": True}}), launcher=Launcher(launcher))
    bad = Finding("gpu_errors", "gpu:GPU-1", "failed", "GPU 1 does not answer", blocks=True)
    state = JobState(Run("run", policy, all_ranks=True, command_nproc=2, findings=(bad,)), attempt=Attempt(3), gpus=FREE)
    _, _, stop = findings.judged(state, 7.0)
    assert stop is not None
    verdict, plan = stop
    assert (verdict.cause, plan.exit_code) == (Cause.GPU_LOST, 69)
    assert "1 GPU is left, and the program loads its checkpoints with" in plan.reason
