"""What no event announces: no checkpoint for long, a mirror that does not catch up, and whether a heartbeat may be sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from supervisor.config.alert_settings import Alerts
from supervisor.config.settings import Settings
from supervisor.core.events import AttemptStarted, CheckpointVerified, Event, ProgressObserved
from supervisor.core.model import CheckpointRef, Phase
from supervisor.core.state import Stage
from supervisor.report.alert_watch import AlertWatch
from supervisor.report.vitals import Vitals

STALL_S = 100.0


def state(stage: Stage = Stage.RUNNING, incident: object = None) -> Any:  # noqa: ANN401  as much of a JobState as is read
    return SimpleNamespace(stage=stage, run=SimpleNamespace(incident=incident), attempt=SimpleNamespace(number=1))


def step(t: float, n: int, phase: Phase = Phase.TRAIN) -> Event:
    return ProgressObserved(t, 1, n, n, phase)


def saved(t: float) -> Event:
    return CheckpointVerified(t, 1, CheckpointRef("a.pt", 1, "structure"))


def vitals(*events: Event, declared: bool = True) -> Vitals:
    vitals = Vitals(expects_checkpoints=declared)
    for event in (AttemptStarted(0.0, 1, (), 1), *events):
        vitals.took(event)
    return vitals


@pytest.mark.parametrize(
    ("vitals", "without_s"),
    [
        (vitals(), 0.0),
        (vitals(step(50, 1)), 950.0),
        (vitals(step(50, 1), declared=False), 0.0),
        (vitals(ProgressObserved(40, 1, 7, 0, Phase.TRAIN, first_step=7), ProgressObserved(50, 1, 8, 0, Phase.TRAIN, first_step=7)), 950.0),
        (vitals(step(50, 1), saved(400), step(500, 2), declared=False), 600.0),
        (vitals(step(50, 1), saved(400), step(500, 2), AttemptStarted(600, 2, (), 1)), 0.0),
        (vitals(step(50, 1), saved(400), AttemptStarted(600, 2, (), 1), step(700, 3)), 600.0),
    ],
    ids=[
        "nothing trains yet",
        "none since the start",
        "none expected",
        "none by the script's own steps",
        "none since the last",
        "it restarts",
        "a restart makes none",
    ],
)
def test_how_long_the_training_ran_without_a_checkpoint(vitals: Vitals, without_s: float) -> None:
    assert vitals.without_checkpoint_s(state(), 1000.0) == without_s
    assert vitals.without_checkpoint_s(state(Stage.TEARDOWN), 1000.0) == 0


@pytest.mark.parametrize(
    ("vitals", "at", "now", "healthy"),
    [
        (vitals(step(10, 1)), state(), 50.0, True),
        (vitals(step(10, 1)), state(), 200.0, False),
        (vitals(step(10, 1), step(150, 1)), state(), 200.0, False),
        (vitals(step(10, 1), step(150, 1, Phase.CHECKPOINT)), state(), 200.0, True),
        (vitals(step(10, -1)), state(), 5000.0, True),
        (vitals(step(10, 1)), state(Stage.STARTING), 50.0, False),
        (vitals(step(10, 1)), state(Stage.ENDED), 50.0, False),
        (vitals(step(10, 1)), state(incident=object()), 50.0, False),
    ],
    ids=["trains", "no step", "the same step", "it saves", "no instrumentation", "it starts", "it ended", "an incident is open"],
)
def test_when_a_heartbeat_may_be_sent(vitals: Vitals, at: Any, now: float, healthy: bool) -> None:  # noqa: ANN401, FBT001  a case
    assert vitals.is_healthy(at, now, STALL_S) is healthy


def watched(vitals: Vitals, settings: Alerts) -> tuple[AlertWatch, MagicMock, list[float]]:
    reporter, behind = MagicMock(), [0.0]
    reporter.vitals = vitals
    job: Any = SimpleNamespace(settings=Settings(alerts=settings))
    return AlertWatch(job, reporter, lambda: behind[0]), reporter, behind


def raised(reporter: MagicMock) -> list[str]:
    return [call.args[0].kind for call in reporter.alerted.call_args_list]


def test_a_missing_checkpoint_is_alerted_once_until_one_is_saved() -> None:
    seen = vitals(step(10, 1))
    watch, reporter, _ = watched(seen, Alerts(no_checkpoint_s=100))
    for now in (50.0, 120.0, 130.0, 140.0):
        watch.tick(state(), now)
    assert raised(reporter) == ["no_checkpoint"]
    seen.took(saved(150))
    for now in (160.0, 260.0, 270.0):
        watch.tick(state(), now)
    assert raised(reporter) == ["no_checkpoint"] * 2
    texts = {call.args[0].text for call in reporter.alerted.call_args_list}
    assert len(texts) == 2, "two of one attempt are two to a receiver"
    off, silent, _ = watched(seen, Alerts(no_checkpoint_s=0))
    off.tick(state(), 1e6)
    assert raised(silent) == []


def test_a_mirror_that_never_catches_up_is_alerted_and_its_recovery_reported() -> None:
    watch, reporter, behind = watched(vitals(), Alerts())
    for seconds in (3500.0, 3600.0, 3700.0, 0.0, 0.0):
        behind[0] = seconds
        watch.tick(state(), 10_000.0)
    assert raised(reporter) == ["mirror_behind"]
    reporter.alert_over.assert_called_once()
    assert reporter.alert_over.call_args.args[0] == "mirror_behind"


def test_the_heartbeat_is_sent_at_its_interval_and_stops_with_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = vitals(step(10, 1))
    monkeypatch.setattr("supervisor.report.alert_watch.PING_S", 30.0)
    monkeypatch.setattr("supervisor.report.alert_watch.STALL_S", STALL_S)
    watch, _, _ = watched(seen, Alerts())
    assert watch.tick(state(), 11.0) is None, "no address"
    endpoint: Any = MagicMock()
    watch.heartbeat = endpoint
    pings = [now for now in range(20, 200, 10) if (ping := watch.tick(state(), float(now))) is not None and ping() is None]
    assert pings == [20, 50, 80]
    assert endpoint.send.call_count == 3
    seen.took(step(195, 2))
    assert watch.tick(state(), 200.0) is not None
