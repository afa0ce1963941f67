"""The table says to which stage an event may lead: no answer leaves the table, and nothing in the table is never walked.

Each state that the scenarios and stories reach is given each event that stands in a scenario, one of each kind of state and of evidence.
The simulator and the random histories of test_invariants check the first half too.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.core.events import (
    AttemptEnded,
    CheckpointSelected,
    DecisionMade,
    EvidenceCollected,
    LauncherFellBack,
    LauncherStarted,
    LeftBehind,
    ReportsGathered,
    SaveSearched,
    TimerFired,
)
from supervisor.core.machine import EVENTS, decide, initial
from supervisor.core.model import Finding
from supervisor.core.state import Stage
from supervisor.core.values import replace
from tests.scenarios import driver
from tests.scenarios.test_scenarios import SCENARIOS, built
from tests.support.transitions import is_declared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.core.actions import Action
    from supervisor.core.events import Event
    from supervisor.core.state import JobState

Step = tuple[Stage, type, Stage]
#: What begins an attempt, or ends one: with and without a look at the node, on one node and on several.
BEGINS = (AttemptEnded, CheckpointSelected, DecisionMade, LauncherFellBack, LauncherStarted, LeftBehind, TimerFired)
#: Of the reports of all nodes so many are given to each state: to judge them is dear, and changes no stage (joint_decision.py).
SOME_REPORTS = 4
FULL_DISK = (Finding("disk_space", "path:/data", "failed", "no room", blocks=True),)


@pytest.fixture(scope="module")
def walked() -> set[Step]:
    """Return every change of stage that was seen."""
    steps: set[Step] = set()
    states: dict[Any, JobState] = {}

    def taken(state: JobState, event: Event) -> tuple[JobState, tuple[Action, ...]]:
        after, actions = decide(state, event)
        states.setdefault(kind_of(after), after)
        steps.add((state.stage, type(event), after.stage))
        return after, actions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "decide", taken)
        for name, cause in driver.PLAYED:
            driver.play_story(name, cause)
    palette = {}
    for scenario in SCENARIOS.values():
        state = initial()
        for row in scenario["step"]:
            event = built(row)
            state, _ = taken(state, event)
            palette[repr(at(event, 0, 0))] = event
    reports = [event for event in palette.values() if isinstance(event, ReportsGathered)]
    evidence = {kind_of_evidence(event): event for event in palette.values() if isinstance(event, EvidenceCollected)}
    left = [*reports[SOME_REPORTS:], *(event for event in palette.values() if isinstance(event, EvidenceCollected))]
    given = [*(event for event in palette.values() if event not in left), *evidence.values()]
    for kept in list(states.values()):
        for state, events in variants(kept, given):
            for event in events:
                now = at(event, state.attempt.number, state.token)
                steps.add((state.stage, type(event), decide(state, now)[0].stage))
    return steps


def kind_of(state: JobState) -> tuple[object, ...]:
    """Return what of a state decides where it may go: of two states of one kind, one is enough."""
    run, attempt, policy, stop = state.run, state.attempt, state.run.policy, state.run.stop
    return (
        (state.stage, bool(state.gpus), bool(state.gpus) and all(gpu.quarantined for gpu in state.gpus)),
        (attempt.awaits_agreement, attempt.ended, attempt.evidence is None, bool(attempt.eviction), attempt.reported_start),
        (attempt.is_shared, attempt.decided, attempt.decision is None),
        (policy.health, policy.checkpoints_declared, policy.checkpoints_learned, policy.nodes > 1, policy.launcher, bool(policy.evict_on)),
        (run.reason, bool(run.findings), run.incident is None, run.incident is not None and run.incident.plan is not None),
        attempt.last_save_search,
        stop and (stop.ranks_not_yet_signalled, stop.save_search, stop.rank_failed),
    )


def kind_of_evidence(event: EvidenceCollected) -> frozenset[object]:
    """Return what of collected evidence is judged: of two of one kind, which differ in a number or a text, one is enough."""
    return frozenset((fact.source, fact.name, fact.claim and fact.claim.cause) for fact in event.evidence)


def at(event: Event, attempt: int, token: int) -> Event:
    """Return the event as one of this attempt, or of this timer, long after all others."""
    present = {"attempt": attempt, "token": token, "t": 10_000.0}
    return replace(event, **{name: present[name] for name in present_fields(type(event))})


@functools.cache
def present_fields(kind: type[Event]) -> tuple[str, ...]:
    """Return which of its fields say to what, and when, an event of this kind belongs."""
    return tuple(name for name in ("attempt", "token", "t") if name in kind.__struct_fields__)


def variants(state: JobState, events: list[Event]) -> Iterator[tuple[JobState, list[Event]]]:
    """Yield the state with the events that it takes, and with other settings where these matter."""
    yield state, [event for event in events if state.stage in EVENTS[type(event)].stages]
    some = [event for event in events if isinstance(event, BEGINS) and state.stage in EVENTS[type(event)].stages]
    policy = state.run.policy
    for other in (replace(policy, health=True), replace(policy, nodes=1), replace(policy, nodes=1, health=True)):
        yield replace(state, run=replace(state.run, policy=other)), some
    if state.attempt.last_save_search:  # the other nodes wait for what this one finds
        shared = replace(state.attempt, members=("a/1", "b/1"), me="a/1", decided="")
        yield replace(state, attempt=shared), [event for event in events if isinstance(event, SaveSearched)]
    if state.stage is Stage.SELECTING:  # the look at this node was quicker
        full = replace(state.run, findings=FULL_DISK, policy=replace(policy, health=True))
        yield replace(state, run=full, attempt=replace(state.attempt, number=max(1, state.attempt.number))), some


def test_no_answer_leaves_the_table(walked: set[Step]) -> None:
    left = [(before.name, kind.__name__, after.name) for before, kind, after in walked if not declared(before, kind, after)]
    assert not left


def declared(before: Stage, kind: type, after: Stage) -> bool:
    return after is before or after in EVENTS[kind].leads_to.get(before, ())


def test_every_way_from_one_stage_to_another_is_walked(walked: set[Step]) -> None:
    ways = {(before, after) for row in EVENTS.values() for before, targets in row.leads_to.items() for after in targets}
    missing = ways - {(before, after) for before, _, after in walked}
    assert not missing


def test_every_event_leads_to_each_of_its_stages_from_somewhere(walked: set[Step]) -> None:
    rows = {(kind, after) for kind, row in EVENTS.items() for targets in row.leads_to.values() for after in targets}
    missing = rows - {(kind, after) for _, kind, after in walked}
    assert not missing


def test_an_event_leads_away_only_from_stages_in_which_it_means_something() -> None:
    assert all(set(row.leads_to) <= row.stages for row in EVENTS.values())


def test_a_way_that_is_not_declared_is_seen() -> None:
    event = AttemptEnded(1.0, 1, "failed")
    assert is_declared(Stage.RUNNING, event, Stage.TEARDOWN)
    assert not is_declared(Stage.RUNNING, event, Stage.WAITING)
