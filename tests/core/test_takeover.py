"""A supervisor that is killed leaves nothing open: its successor closes each incident once, whatever the stage, and whatever the end."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

import pytest

from supervisor.core import actions as act
from supervisor.core import events as core_events
from supervisor.core.machine import decide, initial
from supervisor.core.model import Beginning, Cause, CheckpointRef, Claim, Evidence, Phase, Policy, RankExit, RankInfo
from supervisor.core.state import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

POLICY = Policy(checkpoints_declared=True, health=True, backoff_base_s=1.0)
SAVED = CheckpointRef("step-80.pt", 80, "digest")


class _Story:
    """One job under supervisors of which each continues where the last one was killed."""

    def __init__(self) -> None:
        self.state, self.t = initial(), 0.0
        self.opened, self.closed = Counter[int](), Counter[int]()
        self.outcomes: list[str] = []
        self.exit_code: int | None = None

    def tell(self, event: core_events.Event) -> None:
        self.state, actions = decide(self.state, event)
        for action in actions:
            if isinstance(action, act.OpenIncident):
                self.opened[action.incident] += 1
            elif isinstance(action, act.CloseIncident):
                self.closed[action.incident] += 1
                self.outcomes.append(action.outcome)
            elif isinstance(action, act.Finish):
                self.exit_code = action.exit_code

    def starts(self, *, continues: bool = True) -> None:
        self.t += 60.0
        self.tell(core_events.SupervisorStarted(self.t, "run", POLICY, continues=continues, last_alive_t=self.t - 30.0))

    def selected(self) -> None:
        chosen = SAVED if self.state.attempt.number else None
        self.tell(core_events.CheckpointSelected(self.t, self.state.attempt.number, chosen, int(chosen is not None)))

    def checked(self) -> None:
        self.tell(core_events.HealthChecked(self.t, self.state.attempt.number, ()))

    def began(self) -> None:
        number = self.state.attempt.number
        self.tell(core_events.AttemptStarted(self.t, number, (RankInfo(0, 0, 100 + number, 1),), 1))

    def trained(self) -> None:
        number = self.state.attempt.number
        loaded, first = (SAVED.path, SAVED.step) if number > 1 else (None, 0)
        assert first is not None
        for seen in (1, 100 * number):
            self.t += 10.0
            self.tell(core_events.ProgressObserved(self.t, number, first + seen, seen, Phase.TRAIN, loaded, first_step=first))

    def died(self) -> None:
        self.tell(core_events.RankExited(self.t, self.state.attempt.number, RankExit(0, 0, 5, signal=9)))

    def judged(self) -> None:
        number = self.state.attempt.number
        self.ended("failed")
        fact = Evidence("log", "text", "No space left", 0, claim=Claim(Cause.IO_ERROR, 0.9, transient=True))
        self.tell(core_events.EvidenceCollected(self.t, number, self.state.incidents, (fact,), 0.5))

    def asked_to_stop(self, signum: int = 15) -> None:
        self.tell(core_events.StopRequested(self.t, signum))

    def ended(self, outcome: str) -> None:
        self.t += 1.0
        self.tell(core_events.AttemptEnded(self.t, self.state.attempt.number, outcome))

    def none_is_good(self) -> None:
        torn = ((SAVED.path, "torn"),)
        self.tell(core_events.CheckpointSelected(self.t, self.state.attempt.number, None, 1, torn=torn))


FIRST = (lambda story: story.starts(continues=False),)
TRAINS: tuple[Callable[[_Story], None], ...] = (*FIRST, _Story.selected, _Story.checked, _Story.began, _Story.trained)
#: What happened until the supervisor was killed, and the stage in which that was.
KILLED: dict[Stage, tuple[Callable[[_Story], None], ...]] = {
    Stage.SELECTING: FIRST,
    Stage.CHECKING: (*FIRST, _Story.selected),
    Stage.STARTING: (*FIRST, _Story.selected, _Story.checked),
    Stage.RUNNING: TRAINS,
    Stage.TEARDOWN: (*TRAINS, _Story.died),
    Stage.WAITING: (*TRAINS, _Story.died, _Story.judged),
    Stage.STOPPING: (*TRAINS, _Story.asked_to_stop),
}
BEGINS = (_Story.selected, _Story.checked, _Story.began)
#: How the job continues under the successor, and the exit code at its end.
GOES_ON: dict[str, tuple[tuple[Callable[[_Story], None], ...], int]] = {
    "done": ((*BEGINS, _Story.trained, lambda story: story.ended("succeeded")), 0),
    "done without a step that was seen": ((*BEGINS, lambda story: story.ended("succeeded")), 0),
    "stopped while it selects": ((_Story.asked_to_stop,), 143),
    "stopped before its ranks are there": ((*BEGINS[:2], _Story.asked_to_stop, lambda story: story.ended("stopped")), 143),
    "stopped while it trains": ((*BEGINS, _Story.trained, _Story.asked_to_stop, lambda story: story.ended("stopped")), 143),
    "given notice": ((*BEGINS, _Story.trained, lambda story: story.asked_to_stop(10), lambda story: story.ended("stopped")), 75),
    "given up": ((_Story.none_is_good,), 65),
}


@pytest.mark.parametrize("end", GOES_ON)
@pytest.mark.parametrize("stage", KILLED)
def test_an_incident_opened_by_a_killed_supervisor_is_closed_once(stage: Stage, end: str) -> None:
    story = _Story()
    for step in KILLED[stage]:
        step(story)
    assert story.state.stage is stage
    steps, code = GOES_ON[end]
    story.starts()
    for step in steps:
        step(story)
    assert (story.state.stage, story.exit_code) == (Stage.ENDED, code)
    assert story.opened == story.closed
    assert set(story.opened.values()) == {1}, "its death is an incident, and no incident opens twice"


@pytest.mark.parametrize(("first", "second"), [pair for pair in product(KILLED, repeat=2) if Stage.STOPPING not in pair])
def test_so_it_is_where_the_successor_is_killed_too(first: Stage, second: Stage) -> None:
    story = _Story()
    for step in KILLED[first]:
        step(story)
    story.starts()
    for step in KILLED[second][1:]:
        step(story)
    assert story.state.stage is second
    story.starts()
    for step in GOES_ON["done"][0]:
        step(story)
    assert story.exit_code == 0
    assert story.opened == story.closed


def test_a_supervisor_that_died_before_its_first_attempt_says_so() -> None:
    state, _ = decide(initial(), core_events.SupervisorStarted(0.0, "run", POLICY))
    _, actions = decide(state, core_events.SupervisorStarted(60.0, "run", POLICY, continues=True))
    assert [action.summary for action in actions if isinstance(action, act.OpenIncident)] == ["supervise died before its first attempt"]


def test_a_save_that_shows_how_a_failed_attempt_began_does_not_close_its_failure() -> None:
    """It comes while the ranks are stopped: the attempt had not been seen to load what it was given."""
    story = _Story()
    for step in TRAINS:
        step(story)
    story.died()
    story.judged()
    story.tell(core_events.TimerFired(story.t + 1.0, "backoff", story.state.token))
    for step in BEGINS:
        step(story)
    number = story.state.attempt.number
    story.tell(core_events.ProgressObserved(story.t, number, None, 5, Phase.TRAIN))
    assert story.state.attempt.began_as is Beginning.UNCONFIRMED
    story.died()
    story.tell(core_events.CheckpointVerified(story.t, number, CheckpointRef("step-5.pt", 5, "structure"), made_in=number))
    assert story.state.attempt.began_as is Beginning.FROM_SCRATCH
    assert story.opened - story.closed == Counter({story.state.incidents: 1})
    story.judged()
    assert story.state.stage is not Stage.TEARDOWN, "it is judged"
