"""Nothing is started after a stop was asked for: in whichever stage it comes, and whatever is heard late, in whatever order."""

from __future__ import annotations

from itertools import permutations

import pytest

from supervisor.core import actions as act
from supervisor.core import events as core_events
from supervisor.core.decide import decide, initial
from supervisor.core.model import Cause, Claim, Evidence, Gpu, Launcher, Phase, Policy, RankExit, RankInfo
from supervisor.core.state import JobState, Stage

POLICY = Policy(checkpoints_learned=True, health=True)
STARTED = core_events.SupervisorStarted(0.0, "run", POLICY)
SELECTED = core_events.CheckpointSelected(1.0, 0, None, 0)
CHECKED = core_events.HealthChecked(2.0, 0, ())
RUNS = core_events.AttemptStarted(3.0, 1, (RankInfo(0, 0, 10, 1),), 1)
DIED = core_events.RankExited(4.0, 1, RankExit(0, 10, 5, code=1))
ENDED = core_events.AttemptEnded(5.0, 1, "failed")
FOUND = core_events.EvidenceCollected(6.0, 1, 1, (Evidence("log", "text", "No space left", 0, claim=Claim(Cause.DISK_FULL, 0.9)),), 0.5)

#: By the stage in which the stop comes: what happened before it.
BEFORE: dict[Stage, tuple[core_events.Event, ...]] = {
    Stage.SELECTING: (STARTED,),
    Stage.CHECKING: (STARTED, SELECTED),
    Stage.STARTING: (STARTED, SELECTED, CHECKED),
    Stage.RUNNING: (STARTED, SELECTED, CHECKED, RUNS),
    Stage.TEARDOWN: (STARTED, SELECTED, CHECKED, RUNS, DIED),
    Stage.WAITING: (STARTED, SELECTED, CHECKED, RUNS, DIED, ENDED, FOUND),
}


def late(attempt: int) -> tuple[core_events.Event, ...]:
    """Return what may still be under way when a stop comes."""
    return (
        core_events.LauncherStarted(10.0, 9, None, 1, 2),
        core_events.LauncherFellBack(10.0, Launcher.STOCK, "torch does not fit"),
        core_events.CheckpointSelected(10.0, attempt, None, 0),
        core_events.HealthChecked(10.0, attempt, ()),
        core_events.LauncherExited(10.0, attempt, "guardian", signal=9),
        core_events.AttemptEnded(10.0, attempt, "failed"),
    )


def played(state: JobState, *events: core_events.Event) -> tuple[JobState, list[act.Action]]:
    """Return the state after the events, and all that was asked for."""
    asked: list[act.Action] = []
    for event in events:
        state, actions = decide(state, event)
        asked += actions
    return state, asked


@pytest.mark.parametrize("signum", [2, 10, 15])
@pytest.mark.parametrize("stage", BEFORE)
def test_nothing_is_started_after_a_stop(stage: Stage, signum: int) -> None:
    before, _ = played(initial(), core_events.GpusListed(0.0, (Gpu(0, "GPU-0"), Gpu(1, "GPU-1"))), *BEFORE[stage])
    assert before.stage is stage
    for order in permutations(late(before.attempt.number)):
        state, asked = played(before, core_events.StopRequested(9.0, signum), *order)
        assert not any(isinstance(action, (act.BeginAttempt, act.SelectCheckpoint)) for action in asked)
        assert not state.awaits_ranks(state.attempt.number)
        assert state.stage is Stage.ENDED


def test_the_step_of_a_stopped_attempt_is_the_last_one_that_its_ranks_made() -> None:
    trained = core_events.ProgressObserved(4.0, 1, 7, 7, Phase.TRAIN)
    stop, last = core_events.StopRequested(9.0, 15), core_events.ProgressObserved(10.0, 1, 85, 85, Phase.TRAIN)
    state, _ = played(initial(), *BEFORE[Stage.RUNNING], trained, stop, last, core_events.AttemptEnded(10.0, 1, "stopped"))
    assert (state.stage, state.attempt.progress.step) == (Stage.ENDED, 85)
