"""Every ladder, step by step: the stories, which (cause, step) they reached, and that each row of the table is needed."""

from __future__ import annotations

import functools

import pytest

from supervisor.core.actions import ReportDecision
from supervisor.core.model import Cause, PlanKind
from supervisor.strategies import LADDER_STEPS, LADDERS
from tests.scenarios.driver import PLAYED, STORIES, World, play_story
from tests.scenarios.planted import PLANTED
from tests.scenarios.test_scenarios import SCENARIOS, held
from tests.support.silent_ladder_steps import silence

#: Planted bugs that the fast tests look for, too: those that are found in a moment.
FAST = ("words_believed", "same_place_not_seen", "steps_back_without_end", "failures_forgotten", "stale_attempt_accepted")
Plays = dict[tuple[Cause, str], list[tuple[str, Cause]]]
ROWS = [(cause, ladder_step) for cause, ladder in LADDERS.items() for ladder_step in ladder]

#: A story as the core really plays it: once for all tests.
played = functools.cache(play_story)


@pytest.mark.parametrize(("name", "cause"), PLAYED, ids=[f"{name} [{cause}]" for name, cause in PLAYED])
def test_story(name: str, cause: Cause) -> None:
    played(name, cause)


@pytest.mark.parametrize("lasts_s", [60.0, 3000.0], ids=["within-the-period", "beyond-it"])
@pytest.mark.parametrize("kinds", ["aaaaaaaaaa", "abcdefghij"], ids=["equal", "different"])
@pytest.mark.parametrize("cause", [Cause.GLOO_ERROR, Cause.RENDEZVOUS])
def test_an_infrastructure_failures_card_counts_the_restarts_until_the_stop(cause: Cause, kinds: str, lasts_s: float) -> None:
    world = World({"policy": {"resumes_itself": True}}, cause)  # else a long attempt without a checkpoint is not begun again
    world.start()
    plans = []
    for kind in kinds:
        world.play({"kind": kind, "lasts_s": lasts_s})
        (report,) = world.of(ReportDecision)
        plans.append(report.plan)
    assert [(plan.kind, plan.exit_code) for plan in plans] == [(PlanKind.RESTART, 0)] * 9 + [(PlanKind.STOP, 75)]
    again = "if the same error comes again without progress"
    counted = [f"{again}: {n} more restart{'s' * (n > 1)}, then supervise stops" for n in range(8, 0, -1)]
    assert [plan.next_ladder_step for plan in plans[:8]] == counted
    assert plans[8].next_ladder_step == "if the same error comes again, supervise stops (exit code 75)"
    assert plans[9].reason == "the infrastructure failed 10 times within a day without progress"


@pytest.fixture(scope="module")
def plays() -> Plays:
    """Return the plays that reached each row."""
    of_rows: Plays = {}
    for name, cause in PLAYED:
        for row in dict.fromkeys(played(name, cause)):
            of_rows.setdefault(row, []).append((name, cause))
    return of_rows


def test_every_step_of_every_ladder_is_reached(plays: Plays) -> None:
    missing = [f"{cause}: {ladder_step}" for cause, ladder_step in ROWS if (cause, ladder_step) not in plays]
    assert not missing
    assert set(plays) <= set(ROWS) | {(Cause.CUDA_OOM, "memory_knobs"), (Cause.CUDA_OOM, "users_row")}


def fails(plays: list[tuple[str, Cause]]) -> bool:
    """Whether a story does not end as it should."""
    for name, cause in plays:
        try:
            play_story(name, cause)
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize(("cause", "ladder_step"), ROWS, ids=[f"{cause} {ladder_step}" for cause, ladder_step in ROWS])
def test_without_any_one_row_a_story_ends_otherwise(cause: Cause, ladder_step: str, plays: Plays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LADDERS, cause, tuple(name for name in LADDERS[cause] if name != ladder_step))
    assert fails(plays[cause, ladder_step])


@pytest.mark.parametrize("strategy", LADDER_STEPS)
def test_without_any_one_strategy_a_story_ends_otherwise(strategy: str, plays: Plays, monkeypatch: pytest.MonkeyPatch) -> None:
    silence(monkeypatch, strategy)
    assert fails([play for (_, ladder_step), reached in plays.items() if ladder_step == strategy for play in reached])


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=() if bug in FAST else pytest.mark.slow) for bug in PLANTED])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[bug](monkeypatch)
    assert fails(PLAYED) or not all_hold()


def all_hold() -> bool:
    """Whether every scenario ends as it should."""
    for name in SCENARIOS:
        try:
            held(name)
        except AssertionError:
            return False
    return True


def test_there_are_enough_stories() -> None:
    assert len(STORIES) >= 60
