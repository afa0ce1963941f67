"""Which findings hold an attempt back, and how many ranks begin without the GPUs that are ill."""

from __future__ import annotations

import pytest

from supervisor.core import events, node_health
from supervisor.core.actions import BeginAttempt, PrintMessage, Quarantine, SetTimer
from supervisor.core.decide import decide
from supervisor.core.model import Finding, Gpu, Launcher, Policy
from supervisor.core.state import Attempt, JobState, Run, Stage

THREE = tuple(Gpu(index, f"GPU-{index}", f"0000:1{index}:00.0") for index in range(3))
#: A GPU that was lost before the job started has no name.
LOST = Finding("gpu_errors", "gpu:#3", "failed", "GPU 3: it is lost", blocks=True)
RESET = Finding("gpu_recovery", "gpu:#3", "failed", "GPU 3: a reset is due", blocks=True)
ON_THE_BUS = Finding("gpu_count", "pci:0000:14:00.0", "failed", "on the bus, and not seen", blocks=True)


@pytest.mark.parametrize(
    ("found", "there"), [((LOST,), 4), ((LOST, RESET), 4), ((LOST, ON_THE_BUS), 5)], ids=["one", "one for two reasons", "two"]
)
def test_a_gpu_that_is_ill_for_two_reasons_is_one_gpu(found: tuple[Finding, ...], there: int) -> None:
    policy = Policy(launcher=Launcher.ELASTIC, min_gpus=1, batch_drift=True, health=True)
    judged = node_health.judged(JobState(gpus=THREE, run=Run(policy=policy, findings=found)), 0.0)
    assert judged.stop is None
    assert any(f"3 of {there} ranks" in one.text for one in judged.actions if isinstance(one, PrintMessage))


def test_a_gpu_that_is_not_needed_is_told_of_once() -> None:
    state = JobState(gpus=THREE, run=Run(policy=Policy(launcher=Launcher.ELASTIC, health=True), findings=(LOST,), command_nproc=3))
    judged = node_health.judged(state, 0.0)
    assert judged.stop is None
    assert [one.text for one in judged.actions if isinstance(one, PrintMessage)] == ["health: GPU 3: it is lost; the job goes on"]
    assert not any(isinstance(one, Quarantine) for one in judged.actions)
    assert node_health.judged(judged.state, 1.0).actions == ()


def test_a_disk_that_stays_full_after_the_first_attempt_is_waited_for_an_hour_and_then_left_with_75() -> None:
    full = Finding("disk_space", "path:/data", "failed", "/data has no room for one checkpoint", blocks=True)
    state = JobState(
        stage=Stage.CHECKING,
        attempt=Attempt(number=1, over_t=90.0),
        run=Run(policy=Policy(health=True, start_tries=50), jitter=1.0, high_water=100),
    )
    t, waits = 100.0, list[float]()
    while state.stage is not Stage.ENDED and len(waits) < 50:
        state, actions = decide(state, events.HealthChecked(t, 1, (full,)))
        for timer in (action for action in actions if isinstance(action, SetTimer) and action.name == "backoff"):
            waits.append(timer.delay_s)
            t += timer.delay_s
            state, _ = decide(state, events.TimerFired(t, "backoff", timer.token))
        assert not any(isinstance(action, BeginAttempt) for action in actions)
    assert state.run.exit_code == 75
    assert waits[:2] == [30.0, 60.0]
    assert max(waits) == 600.0
    assert 3000 < sum(waits) < 4500
    assert state.incidents == 1


def test_what_a_person_must_repair_is_not_waited_for_behind_a_full_disk() -> None:
    full = Finding("disk_space", "path:/data", "failed", "/data has no room", blocks=True)
    driver = Finding("gpu_driver", "driver", "failed", "the driver does not fit its library", blocks=True)
    state = JobState(stage=Stage.CHECKING, attempt=Attempt(number=1), run=Run(policy=Policy(health=True)))
    for findings in ((full, driver), (driver, full)):
        ended, _ = decide(state, events.HealthChecked(1.0, 1, findings))
        assert ended.run.exit_code == 69
