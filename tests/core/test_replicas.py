"""Over worlds, layouts, losses and nodes every plan has whole replicas of the model, and the global batch stays true."""

from __future__ import annotations

from math import gcd

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from supervisor import strategies
from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.failure import planning
from supervisor.core.health import findings
from supervisor.core.machine import decide, initial
from supervisor.core.model import (
    Cause,
    Claim,
    Evidence,
    FailureVerdict,
    Finding,
    Gpu,
    JobDecision,
    Knob,
    Launcher,
    Plan,
    PlanKind,
    Policy,
    RankInfo,
)
from supervisor.core.nodes import replicas, sharing
from supervisor.core.policy_settings import Gpus, Restart
from supervisor.core.state import JobState, Run, Stage
from supervisor.core.values import replace
from supervisor.strategies.situation import Situation

#: Ranks of a node: those of real machines, and some that no power of two divides.
PER_NODE = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16])
NODES = st.integers(1, 12)
MICRO, ACCUM = st.integers(1, 64), st.integers(1, 16)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, int, int]:
    """Draw the ranks of a node, the nodes, and the ranks of a replica that divide the world."""
    per_node, nodes = draw(PER_NODE), draw(NODES)
    world = per_node * nodes
    return per_node, nodes, draw(st.sampled_from([size for size in range(1, world + 1) if world % size == 0]))


def gpus_of(count: int, *lost: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(index, f"GPU-{index}", f"0000:{index:02x}:00.0", "lost" if index in lost else "") for index in range(count))


def knobs_of(micro: int, accum: int) -> tuple[Knob, Knob]:
    size = Knob("batch_size", str(micro), "--batch", counts="gpu", seen=True)
    return size, Knob("grad_accum", str(accum), "--accum", counts="rank", seen=True)


def batch_with(overrides: dict[str, str], knobs: tuple[Knob, ...], ranks: int, size: int) -> int:
    """Return the global batch as a framework computes it: by data-parallel ranks."""
    micro, accum = (int(overrides.get(knob.name, knob.value)) for knob in knobs)
    return ranks // size * micro * accum


def lost_gpu(situation: Situation) -> Plan:
    """Return what follows when a GPU of this node is lost that no one took out of use yet."""
    gpu = next(gpu.uuid for gpu in situation.gpus if not gpu.quarantined)
    return strategies.propose(replace(situation, gpu=gpu, verdict=replace(situation.verdict, gpu=gpu)))


@settings(max_examples=300, deadline=None)
@given(layouts(), st.integers(0, 3), st.integers(1, 8), st.booleans(), MICRO, ACCUM, st.sampled_from(list(Launcher)))
def test_after_any_loss_of_gpus_the_ranks_are_whole_replicas_with_the_planned_batch(  # noqa: PLR0913, PLR0917  drawn
    layout: tuple[int, int, int],
    spares: int,
    minimum: int,
    drift: bool,  # noqa: FBT001  drawn
    micro: int,
    accum: int,
    launcher: Launcher,
) -> None:
    per_node, nodes, size = layout
    nodes = nodes if launcher is Launcher.ELASTIC else 1
    assume(per_node * nodes % size == 0)
    knobs = knobs_of(micro, accum)
    policy = Policy(
        launcher=launcher,
        gpus=Gpus(minimum=minimum),
        restart=Restart(batch_drift=drift),
        knobs=knobs,
        replica_size=size,
        node_group=replicas.node_group(per_node, size),
    )
    claim = Evidence("nvml", "lost", "lost", claim=Claim(Cause.GPU_LOST, 1.0))
    situation = Situation(
        t=0.0,
        verdict=FailureVerdict(Cause.GPU_LOST, 1.0, "lost", "lost", because=(claim,)),
        policy=policy,
        first=None,
        step=100,
        before_first_step=False,
        failures=(),
        attempts=1,
        knobs=knobs,
        world_size=per_node * nodes,
        ranks=per_node,
        gpus=gpus_of(per_node + spares),
    )
    total = per_node * nodes // size * micro * accum
    for _ in range(per_node + spares):
        plan = lost_gpu(situation)
        if plan.kind is not PlanKind.RESTART:
            assert plan.exit_code == 69
            break
        situation = situation.again(plan)
        left = sum(not gpu.quarantined for gpu in situation.gpus)
        if launcher is Launcher.ELASTIC:
            assert 0 < situation.ranks <= left, "no more ranks than GPUs"
            assert situation.world_size % size == 0
            assert situation.ranks % min(size, gcd(size, per_node)) == 0
            assert situation.ranks >= min(minimum, per_node)
            now = batch_with(dict(situation.overrides), knobs, situation.world_size, size)
            assert drift or now == total, "without --allow-batch-drift the global batch stays exactly what it was"
        else:
            state = JobState(run=Run(policy=policy), gpus=situation.gpus)
            shown = planning.usable(state)
            assert shown and len(shown) % size == 0 and minimum <= len(shown) <= left  # noqa: PT018  one rank for each
    else:
        pytest.fail("it continues without a GPU")


@settings(max_examples=200, deadline=None)
@given(layouts(), st.data())
def test_an_attempt_begins_on_a_node_with_ill_gpus_in_whole_replicas_or_not_at_all(
    layout: tuple[int, int, int], data: st.DataObject
) -> None:
    per_node, _, size = layout
    assume(per_node % size == 0)
    ill = data.draw(st.integers(1, per_node))
    minimum = data.draw(st.integers(0, per_node))
    policy = Policy(
        launcher=Launcher.ELASTIC, health=True, gpus=Gpus(minimum=minimum), restart=Restart(batch_drift=True), replica_size=size
    )
    reported = tuple(Finding("gpu_errors", f"gpu:GPU-{index}", "failed", "ill", blocks=True) for index in range(ill))
    judged = findings.judged(JobState(gpus=gpus_of(per_node), run=Run(policy=policy, findings=reported, command_nproc=per_node)), 0.0)
    fits = (per_node - ill) // size * size
    if judged.stop is None:
        assert judged.state.run.nproc == fits
        assert 0 < minimum <= fits
    else:
        assert not minimum or fits < max(minimum, 1)
        assert judged.stop[1].exit_code == 69


@settings(max_examples=200, deadline=None)
@given(layouts(), st.data())
def test_the_launcher_begins_with_whole_replicas_where_gpus_are_out_of_use(layout: tuple[int, int, int], data: st.DataObject) -> None:
    per_node, _, size = layout
    assume(per_node % size == 0)
    out = data.draw(st.integers(1, per_node - 1)) if per_node > 1 else 0
    policy = Policy(launcher=Launcher.ELASTIC, gpus=Gpus(minimum=1), restart=Restart(batch_drift=True), replica_size=size)
    state, _ = decide(initial(), events.GpusListed(0.0, gpus_of(per_node, *range(out))))
    state, _ = decide(state, events.SupervisorStarted(0.0, "run", policy))
    state, actions = decide(state, events.LauncherStarted(1.0, 10, None, 1, per_node))
    begun = [action for action in actions if isinstance(action, act.BeginAttempt)]
    fits = (per_node - out) // size * size
    if out and fits:
        assert [action.nproc for action in begun] == [fits]
    elif out:
        assert state.run.exit_code == 69
    assert state.stage is Stage.STARTING or state.stage is Stage.ENDED


class Nodes:
    """The core of one of several nodes that meet, train and lose each other."""

    def __init__(self, per_node: int, size: int, knobs: tuple[Knob, Knob], *, least: int, most: int) -> None:
        self.per_node, self.knobs = per_node, knobs
        group = replicas.node_group(per_node, size)
        self.policy = Policy(nodes=most, least_nodes=least, knobs=self.knobs, replica_size=size, node_group=group)
        self.number, self.state = 1, initial()
        self.tell(events.SupervisorStarted(0.0, "run", self.policy))

    def tell(self, event: events.Event) -> tuple[act.Action, ...]:
        """Give the core an event."""
        self.state, actions = decide(self.state, event)
        return actions

    def train_on(self, nodes: int) -> dict[str, str]:
        """Meet as so many nodes, agree, and train; return what the ranks are given."""
        ranks, members = nodes * self.per_node, tuple(f"{index}/1" for index in range(nodes))
        actions = self.tell(events.NodesGathered(1.0, self.state.attempt.number, 0, nodes, self.number, members, ranks))
        select = next(action for action in actions if isinstance(action, act.SelectCheckpoint))
        actions = self.tell(
            events.CheckpointSelected(2.0, self.number, None, 0, agreement=self.number, overrides=select.overrides, batch=select.batch)
        )
        self.tell(events.AttemptStarted(3.0, self.number, (RankInfo(0, 0, 1, 1),), ranks))
        return dict(next(action for action in actions if isinstance(action, act.BeginAttempt)).overrides)

    def lose_a_node(self) -> None:
        """End the attempt on all nodes, which decide to restart."""
        verdict = FailureVerdict(Cause.NODE_LOST, 0.9, "node 1 is lost", "node:lost")
        decision = JobDecision(verdict, Plan(PlanKind.RESTART, "because", "next", "ladder_step"), by=self.state.attempt.me)
        self.tell(events.AttemptEndedByPeer(4.0, self.number, "1/1", "it failed"))
        self.tell(events.AttemptEnded(4.5, self.number, "failed"))
        self.tell(events.DecisionMade(5.0, self.number, "restart", decision))
        self.number += 1


@settings(max_examples=150, deadline=None)
@given(PER_NODE, st.integers(1, 32), st.integers(1, 6), st.integers(2, 8), MICRO, ACCUM)
def test_nodes_wait_leave_and_join_in_groups_that_hold_whole_replicas_with_the_same_batch(  # noqa: PLR0913, PLR0917  drawn
    per_node: int, size: int, least: int, most: int, micro: int, accum: int
) -> None:
    assume(least <= most and replicas.misfit(size, per_node, least, most) is None)
    job = Nodes(per_node, size, knobs_of(micro, accum), least=least, most=most)
    group = size // gcd(size, per_node)
    needed = sharing.least_nodes(job.state.run)
    assert least <= needed <= most
    assert needed * per_node % size == 0, "an attempt waits for whole replicas"
    counts = [count for count in range(max(needed, 2), most + 1) if count * per_node % size == 0]
    assume(counts)
    assert not job.train_on(counts[-1])
    total = batch_with({}, job.knobs, counts[-1] * per_node, size)
    for waiting in range(1, most + 2):
        at = counts[0]
        state = replace(job.state, attempt=replace(job.state.attempt, members=tuple(f"{index}/1" for index in range(at)), admission=None))
        state, _ = decide(state, events.NodesWaiting(3.5, job.number, waiting))
        admitted = state.attempt.admission.count if state.attempt.admission is not None else 0
        can_grow = any(at < count <= min(at + waiting, most) for count in range(at, most + 1) if count % group == 0)
        assert bool(admitted) == can_grow, "nobody is stopped for a node that makes up no whole replica"
    for count in reversed(counts[:-1]):
        job.lose_a_node()
        given_values = job.train_on(count)
        held = batch_with(given_values, job.knobs, count * per_node, size)
        batch_ranks = job.state.run.batch_ranks
        assert batch_ranks == counts[-1] * per_node
        assert held == total or total % (count * per_node // size), "the batch is held wherever whole numbers do"


@given(PER_NODE, NODES, st.integers(0, 12), st.integers(1, 256))
def test_a_layout_is_refused_exactly_if_no_number_of_nodes_holds_whole_replicas(per_node: int, most: int, least: int, size: int) -> None:
    least = min(least, most)
    fits = any(count * per_node % size == 0 for count in range(max(least, 1), most + 1))
    misfit = replicas.misfit(size, per_node, least, most)
    assert (misfit is None) == fits
    if misfit is not None:
        for option in misfit[1].split(" or "):
            flag, _, number = option.partition("=")
            world = int(number) * (most if flag == "--nproc-per-node" else per_node)
            assert world % size == 0, "what the line says to write fits"


def test_the_ranks_that_met_and_hold_no_whole_replica_are_not_started() -> None:
    job = Nodes(4, 8, knobs_of(1, 1), least=2, most=4)
    members = ("0/1", "1/1", "2/1")
    actions = job.tell(events.NodesGathered(1.0, job.state.attempt.number, 0, 3, 1, members, 12))
    assert not any(isinstance(action, act.SelectCheckpoint | act.BeginAttempt) for action in actions)
    wanted = job.state.attempt.stop_wanted
    assert wanted is not None
    assert wanted.plan.exit_code == 75
    assert "the 12 ranks of the 3 nodes that met hold no whole number of replicas" in wanted.plan.reason


def test_a_launcher_whose_ranks_only_torch_knows_is_refused_before_a_rank_starts() -> None:
    policy = Policy(launcher=Launcher.ELASTIC, replica_size=4, replica_source="--model-parallel 4")
    state, _ = decide(initial(), events.SupervisorStarted(0.0, "run", policy))
    state, actions = decide(state, events.LauncherStarted(1.0, 10, None, 1, 7))
    assert state.run.exit_code == 78
    report = next(action for action in actions if isinstance(action, act.ReportDecision))
    assert (
        report.plan.reason
        == "a replica, one copy of the model, has 4 ranks (--model-parallel 4), and the 7 ranks hold no whole number of replicas"
    )
    assert "--nproc-per-node=4" in report.plan.next_ladder_step


@pytest.mark.parametrize(("size", "batch"), [(1, 336), (4, 84)])
def test_the_batch_of_eight_ranks_counts_replicas(size: int, batch: int) -> None:
    """TP=4: two replicas of 4 ranks, so that 2 × 42 is 84 and not 336."""  # noqa: RUF002  the sign
    job = Nodes(4, size, knobs_of(42, 1), least=2, most=2)
    proof = Evidence("heartbeat", "memory", "x", claim=Claim(Cause.CUDA_OOM, 1.0))
    job.train_on(2)
    verdict = FailureVerdict(Cause.CUDA_OOM, 1.0, "x", "x", because=(proof,))
    situation = Situation(
        t=0.0, verdict=verdict, policy=job.policy, first=None, step=1, before_first_step=False,
        failures=(), attempts=1, knobs=job.knobs, world_size=8, ranks=4,
    )  # fmt: skip
    plan = strategies.propose(situation)
    assert f"= {batch}, now" in plan.notes[0]


@pytest.mark.parametrize(("there", "shown"), [(9, 8), (8, 4), (4, 0)])
def test_a_command_that_has_a_rank_for_each_gpu_sees_whole_replicas_or_is_not_begun(there: int, shown: int) -> None:
    policy = Policy(launcher=Launcher.PLAIN, replica_size=4, replica_source="--model-parallel 4")
    state, _ = decide(initial(), events.GpusListed(0.0, gpus_of(there, 0)))
    state, actions = decide(state, events.SupervisorStarted(0.0, "run", policy))
    begun = [action for action in actions if isinstance(action, act.BeginAttempt)]
    assert [len(action.gpus) for action in begun] == ([shown] if shown else [])
    if not shown:
        assert state.run.exit_code == 69
        report = next(action for action in actions if isinstance(action, act.ReportDecision))
        assert (
            report.plan.reason == "3 of 4 GPUs may be used, for the job: a replica, one copy of the model, has 4 ranks (--model-parallel 4)"
        )


def test_a_node_short_of_a_whole_replica_waits_as_a_spare_and_is_reported() -> None:
    job = Nodes(4, 8, knobs_of(1, 1), least=2, most=4)
    job.train_on(2)
    texts = [action.text for action in job.tell(events.NodesWaiting(3.5, 1, 1)) if isinstance(action, act.PrintMessage)]
    assert texts == [
        "1 node(s) ask to join, and wait as spares: a replica, one copy of the model, has 8 ranks, so that nodes are taken in by 2"
    ]
    texts = [action.text for action in job.tell(events.NodesWaiting(3.6, 1, 2)) if isinstance(action, act.PrintMessage)]
    assert texts[0].startswith("2 node(s) ask to join: attempt 1 continues, and they are taken in")
