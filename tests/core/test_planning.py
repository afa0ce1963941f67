"""The part of the state that stays between one failure and the next."""

from __future__ import annotations

import pytest

from supervisor.core.actions import CloseIncident
from supervisor.core.attempt import known_checkpoints
from supervisor.core.events import CheckpointVerified, RanksFound
from supervisor.core.failure import judgement, planning
from supervisor.core.machine import decide
from supervisor.core.model import Cause, CheckpointRef, Evidence, FailureVerdict, Gpu, Launcher, Phase, Policy, RankInfo
from supervisor.core.state import Attempt, Incident, JobState, Run, Stage
from supervisor.core.values import replace

REPORTED = {"as saved": (65, 70, 75), "newest first": (75, 70, 65), "twice": (70, 75, 65, 70)}


def ref(step: int) -> CheckpointRef:
    return CheckpointRef(f"ckpt/{step}.pt", step, "structure")


def rolled_back_to_60(*older: int) -> JobState:
    """Return a state in which attempt 2 resumed from step 60, with these older checkpoints."""
    state = JobState(stage=Stage.RUNNING, attempt=Attempt(2, resume=ref(60)))
    return known_checkpoints.with_selected(state, ref(60), tuple(map(ref, older)))


def known(state: JobState) -> list[int | None]:
    return [checkpoint.step for checkpoint in state.run.verified]


@pytest.mark.parametrize("reported", REPORTED.values(), ids=REPORTED)
def test_good_checkpoints_are_in_the_order_of_attempts_and_within_one_of_steps(reported: tuple[int, ...]) -> None:
    state = rolled_back_to_60(50)
    for step in reported:
        state, _ = decide(state, CheckpointVerified(1.0, 2, ref(step), made_in=2))
    state, _ = decide(state, CheckpointVerified(2.0, 2, ref(102), made_in=1))
    state, _ = decide(state, CheckpointVerified(3.0, 2, ref(60), made_in=1))
    assert known(state) == [50, 102, 60, 65, 70, 75]
    assert state.run.newest == ref(75)


def test_the_checkpoints_of_an_earlier_run_do_not_displace_those_of_this_one() -> None:
    state = rolled_back_to_60(*range(1000, 1100, 10))
    assert known(state) == [*range(1010, 1100, 10), 60]
    for step in (65, 70):
        state, _ = decide(state, CheckpointVerified(1.0, 2, ref(step), made_in=2))
    assert known(state) == [*range(1030, 1100, 10), 60, 65, 70]


SAVES = {
    "two later ones": (60, (70, 80), [False, True]),
    "one later one, of a handler": (60, (61,), [False]),
    "the given one by another name, then a later one": (60, (60, 70, 80), [False, False, False]),
    "copies of earlier ones": (60, (40, 50, 70, 80), [False] * 4),
    "nothing was given": (None, (70, 80), [False, False]),
}


@pytest.mark.parametrize(("given", "saved", "closed"), SAVES.values(), ids=SAVES)
def test_two_later_saves_end_the_incident_of_an_attempt_whose_steps_nobody_sees(
    given: int | None, saved: tuple[int, ...], closed: list[bool]
) -> None:
    resume = None if given is None else ref(given)
    state = JobState(stage=Stage.RUNNING, run=Run(incident=Incident(1, 0.5, 1)), attempt=Attempt(2, resume=resume))
    for step, is_closed in zip(saved, closed, strict=True):
        state, actions = decide(state, CheckpointVerified(1.0, 2, ref(step), made_in=2))
        assert actions == ((CloseIncident(1, 2, "resolved", step),) if is_closed else ())
        assert (state.run.incident is None) == is_closed


COMMAND = RankInfo(0, 0, 70, 1)
TWO = (RankInfo(0, 0, 71, 1), RankInfo(1, 1, 72, 1))


def test_plans_count_the_ranks_that_a_plain_command_started_and_name_its_gpus_as_before() -> None:
    policy = Policy(launcher=Launcher.PLAIN)
    state = JobState(stage=Stage.RUNNING, run=Run(policy=policy), attempt=Attempt(1, ranks=(COMMAND,), world_size=1))
    state, actions = decide(state, RanksFound(2.0, 1, TWO, 4))
    assert (actions, state.attempt.live_ranks, state.attempt.world_size) == ((), TWO, 4)
    verdict = FailureVerdict(Cause.GPU_LOST, 1.0, "lost", "gpu:lost", gpu="1")
    gpus = (Gpu(0, "GPU-a"), Gpu(1, "GPU-b"))
    situation = planning.situation(
        replace(state, gpus=gpus), 3.0, verdict, planning.Place(None, before_first_step=False, phase=Phase.TRAIN)
    )
    assert (situation.ranks, situation.world_size, situation.pids, situation.gpu) == (2, 4, (71, 72), "GPU-b")
    late, _ = decide(
        JobState(stage=Stage.TEARDOWN, run=Run(policy=policy), attempt=Attempt(number=1, ranks=(COMMAND,))), RanksFound(2.0, 1, TWO, 4)
    )
    assert late.attempt.ranks == (COMMAND,)


@pytest.mark.parametrize(
    ("cause", "facts", "expected"),
    [
        pytest.param(Cause.RENDEZVOUS, {"phase": "init", "steps": "0"}, True, id="its first meeting"),
        pytest.param(Cause.RENDEZVOUS, {"phase": "init", "steps": "0", "ran": "more than imports"}, False, id="a later one"),
        pytest.param(Cause.RENDEZVOUS, {"phase": "unknown", "steps": "0"}, False, id="it may have trained"),
        pytest.param(Cause.USER_CODE, {"phase": "init", "steps": "0"}, False, id="its own set-up, for longer than the window"),
    ],
)
def test_ranks_that_did_not_meet_made_no_step_however_long_they_waited(cause: Cause, facts: dict[str, str], *, expected: bool) -> None:
    state = JobState(stage=Stage.RUNNING, attempt=Attempt(1, ranks=TWO, world_size=2, began_t=0.0, started_t=0.0))
    later = state.run.policy.start_window_s + 1000
    assert judgement.before_first_step(state, later, FailureVerdict(cause, 0.9, "", "", rank=0), facts) is expected


def test_a_plain_command_that_is_rank_1_by_its_own_variables_has_its_heartbeat() -> None:
    beats = tuple(Evidence("heartbeat", name, text, rank=1) for name, text in (("phase", "init"), ("steps", "0")))
    alone = JobState(stage=Stage.TEARDOWN, attempt=Attempt(1, ranks=(COMMAND,), world_size=1, evidence=beats, started_t=0.0))
    verdict = FailureVerdict(Cause.RENDEZVOUS, 0.9, "n7 cannot be resolved", "n7", rank=0)
    assert judgement.judged(alone, 1.0, verdict).failure.before_first_step
    of_two = replace(alone, attempt=replace(alone.attempt, ranks=TWO, world_size=2))
    assert not judgement.judged(of_two, 1.0, verdict).failure.before_first_step
