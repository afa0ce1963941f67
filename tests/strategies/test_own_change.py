"""What supervise, or the nodes that met, changed is suspected before the program: numbers of nodes and ranks (stories have the rest)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.core.model import Cause, Change, Evidence, Failure, Gpu, Launcher, PlanKind, Policy
from supervisor.core.setup_model import OwnChange, Setup
from supervisor.core.values import replace
from supervisor.strategies import propose
from tests.strategies.test_ladders import failure, situation

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

TWO, ONE, THREE = Setup(1, nodes=2, ranks=8), Setup(2, nodes=1, ranks=4), Setup(2, nodes=3, ranks=12)
ELASTIC = Policy(nodes=3, least_nodes=1)
BATCH = (Change("batch_size", "4", "8", "--batch-size"),)


def of(change: OwnChange, cause: Cause = Cause.CHECKPOINT_MISMATCH, *, transient: bool = False, **changes: object) -> Situation:
    """Attempt 2 failed before its first step, with what differs from attempt 1."""
    given = situation(
        cause, before_first_step=True, trained=True, attempts=2, step=None, own_change=change, **{"policy": ELASTIC, **changes}
    )
    return replace(given, verdict=replace(given.verdict, transient=transient))


FEWER = OwnChange(TWO, ONE, trained=True)


@pytest.mark.parametrize("cause", [Cause.CHECKPOINT_MISMATCH, Cause.CHECKPOINT_CORRUPT, Cause.USER_CODE, Cause.CUDA_OOM, Cause.SEGFAULT])
def test_with_fewer_nodes_the_next_attempt_waits_for_as_many_as_trained_and_rejects_no_checkpoint(cause: Cause) -> None:
    plan = propose(of(FEWER, cause))
    assert (plan.kind, plan.strategy, plan.least_nodes) == (PlanKind.RESTART, "own_change", 2)
    assert (plan.rejected, plan.charged) == ((), False)
    assert plan.reason == (
        "attempt 2 ran with 1 node instead of 2 nodes, and failed before its first step as no attempt before it did (attempt 1 trained): "
        "the number of ranks is suspected, and not the program; the next attempt waits for 2 nodes, and no other of this run begins with "
        "fewer"
    )


def test_with_more_nodes_the_job_stops_and_names_the_command_for_the_trained_number() -> None:
    plan = propose(of(OwnChange(TWO, THREE, trained=True)))
    assert (plan.kind, plan.exit_code, plan.strategy) == (PlanKind.STOP, 65, "own_change")
    assert "--nnodes=2" in plan.next_ladder_step


def test_fewer_ranks_on_a_node_whose_gpu_is_out_of_use_leave_the_node() -> None:
    fewer = OwnChange(Setup(1, ranks=4), Setup(2, ranks=3, gpus=("GPU-0", "GPU-2")), trained=True)
    out = (Gpu(0, "GPU-0"), Gpu(1, "GPU-1", quarantined="xid 79"))
    plan = propose(of(fewer, gpus=out))
    assert (plan.kind, plan.exit_code, plan.strategy) == (PlanKind.STOP, 69, "own_change")
    assert propose(of(fewer)).strategy == "own_code_before_first_step", "the scheduler gave it fewer"


@pytest.mark.parametrize(
    "situation",
    [
        of(FEWER, Cause.CHECKPOINT_CORRUPT, transient=True),
        of(FEWER, Cause.GLOO_ERROR),
        of(FEWER, Cause.DATA_ERROR),
        of(FEWER, failures=(failure(Cause.CHECKPOINT_MISMATCH),)),
        of(FEWER, policy=Policy(nodes=1)),
        of(FEWER, policy=Policy(nodes=3, launcher=Launcher.PLAIN)),
        of(OwnChange(TWO, replace(TWO, attempt=2), trained=True, changes=BATCH), Cause.NCCL_NETWORK),
        of(
            OwnChange(TWO, replace(TWO, attempt=2), trained=True, changes=BATCH),
            Cause.CUDA_OOM,
            failures=(failure(Cause.CUDA_OOM, changed=True),),
        ),
    ],
    ids=["it may pass", "the network", "a read", "before it too", "the user's own", "no agent", "not of the batch", "its own cause"],
)
def test_a_change_is_not_suspected_for_an_unrelated_failure(situation: Situation) -> None:
    assert propose(situation).strategy != "own_change"


def test_the_same_failure_after_the_change_was_taken_back_is_the_programs() -> None:
    situation = of(OwnChange(TWO, replace(TWO, attempt=2), trained=True, changes=BATCH))
    plan = propose(situation)
    assert plan.changes == BATCH
    assert plan.next_ladder_step == "if the same error comes again, supervise stops (exit code 42)"
    back: Failure = situation.failure(plan)
    assert (back.changed, back.charged) == (True, False)


def refused_by_loader(change: OwnChange, **changes: object) -> Situation:
    """A loader said that another number of ranks saved, long after the change, and not before the first step."""
    evidence = Evidence("error_file", "checkpoint_mismatch.world_size", "used a DP world size of 8", 0)
    given = situation(Cause.CHECKPOINT_MISMATCH, attempts=5, step=41, resized=change, **{"policy": ELASTIC, **changes})
    return replace(given, verdict=replace(given.verdict, because=(evidence,)))


GPUS = tuple(Gpu(i, f"GPU-{i}") for i in range(16))
ONE_OUT = (*GPUS[:15], Gpu(15, "GPU-15", quarantined="xid 79"))


def test_with_fewer_nodes_a_loaders_words_wait_for_as_many_as_saved() -> None:
    plan = propose(refused_by_loader(FEWER))
    assert (plan.kind, plan.strategy, plan.least_nodes, plan.rejected, plan.charged) == (PlanKind.RESTART, "own_change", 2, (), False)
    assert plan.reason == (
        "the program saved with 8 ranks and loads with 8 only; 4 are left here; the next attempt waits for 2 nodes, and no other of this "
        "run begins with fewer"
    )


def test_with_more_nodes_than_saved_the_job_stops_and_names_the_command() -> None:
    plan = propose(refused_by_loader(OwnChange(TWO, THREE, trained=True)))
    assert (plan.kind, plan.exit_code, plan.rejected) == (PlanKind.STOP, 65, ())
    assert plan.reason == "the program saved with 8 ranks and loads with 8 only; 12 are here"
    assert "--nnodes=2" in plan.next_ladder_step


@pytest.mark.parametrize(("gpus", "code"), [(GPUS, 0), (ONE_OUT, 69), (GPUS[:15], 69), ((), 69)], ids=["fit", "out", "gone", "unknown"])
def test_the_ranks_of_all_nodes_are_given_back_where_all_their_gpus_are_in_use_again(gpus: tuple[Gpu, ...], code: int) -> None:
    fewer = OwnChange(Setup(1, nodes=2, ranks=16), Setup(4, nodes=2, ranks=15), trained=True)
    plan = propose(refused_by_loader(fewer, gpus=gpus[:8], gpus_now=gpus))
    assert (plan.strategy, plan.exit_code, plan.all_ranks, plan.rejected) == ("own_change", code, not code, ())
    assert plan.reason.startswith("the program saved with 16 ranks and loads with 16 only; 15 are left here")
    assert code == 0 or "use nodes with 16 GPUs" in plan.next_ladder_step
