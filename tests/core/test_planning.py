"""What is kept in the state between a failure and the next."""

from __future__ import annotations

import pytest

from supervisor.core import planning
from supervisor.core.decide import decide
from supervisor.core.events import RanksFound
from supervisor.core.model import Cause, CheckpointRef, Gpu, Launcher, Phase, Policy, RankInfo, Verdict
from supervisor.core.state import Attempt, JobState, Run, Stage, changed


@pytest.mark.parametrize("told", [(5, 10, 15), (15, 10, 5), (10, 15, 5, 10)], ids=["as written", "newest first", "twice"])
def test_good_checkpoints_are_known_in_the_order_of_their_steps_however_they_are_told(told: tuple[int, ...]) -> None:
    state = JobState()
    for step in told:
        state = planning.with_verified(state, CheckpointRef(f"ckpt/{step}.pt", step, "structure"))
    assert [found.step for found in state.run.verified] == [5, 10, 15]


COMMAND = RankInfo(0, 0, 70, 1)
TWO = (RankInfo(0, 0, 71, 1), RankInfo(1, 1, 72, 1))


def test_plans_count_the_ranks_that_a_plain_command_started_and_name_its_gpus_as_before() -> None:
    policy = Policy(launcher=Launcher.PLAIN)
    state = JobState(stage=Stage.RUNNING, run=Run(policy=policy), attempt=Attempt(1, ranks=(COMMAND,), world_size=1))
    state, actions = decide(state, RanksFound(2.0, 1, TWO, 4))
    assert (actions, state.attempt.live_ranks, state.attempt.world_size) == ((), TWO, 4)
    verdict = Verdict(Cause.GPU_LOST, 1.0, "lost", "gpu:lost", gpu="1")
    gpus = (Gpu(0, "GPU-a"), Gpu(1, "GPU-b"))
    given = planning.situation(changed(state, gpus=gpus), 3.0, verdict, planning.Place(None, before_first_step=False, phase=Phase.TRAIN))
    assert (given.ranks, given.world_size, given.pids, given.gpu) == (2, 4, (71, 72), "GPU-b")
    late, _ = decide(
        JobState(stage=Stage.TEARDOWN, run=Run(policy=policy), attempt=Attempt(number=1, ranks=(COMMAND,))), RanksFound(2.0, 1, TWO, 4)
    )
    assert late.attempt.ranks == (COMMAND,)
