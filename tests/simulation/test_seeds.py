"""Two hundred seeds: nothing is broken, every step is reached, and none of them can be taken away unseen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.machine import decide
from supervisor.core.state import Stage
from supervisor.strategies import LADDERS
from tests.simulation import seeds
from tests.simulation.laws import USERS_ROW
from tests.simulation.report import LEAST
from tests.support.silent_ladder_steps import silence

if TYPE_CHECKING:
    from supervisor.core.model import Cause
    from supervisor.core.state import JobState


class HealthCounts(Counter[str]):
    """How often each answer to a node that gets worse was given."""

    def decide(self, before: JobState, event: events.Event) -> tuple[JobState, tuple[act.Action, ...]]:
        """Decide as the core does, and count."""
        state, actions = decide(before, event)
        kinds = {type(action) for action in actions}
        if isinstance(event, events.HealthChanged):
            self["evicted" if act.StopRanks in kinds else "alerted" if act.Alert in kinds else "known"] += 1
        elif before.run.findings is not None or isinstance(event, events.HealthChecked):
            self["put out of use"] += act.Quarantine in kinds
            self["fewer ranks"] += any(isinstance(a, act.Alert) and a.kind == "batch_changed" for a in actions)
            self["this node is left"] += any(isinstance(a, act.ReportDecision) and a.plan.strategy == "health" for a in actions)
        elif isinstance(event, events.TimerFired) and before.stage is Stage.CHECKING and act.BeginAttempt in kinds:
            self["nobody answered"] += 1
        return state, actions


@pytest.fixture(scope="module")
def health() -> HealthCounts:
    """Count while `outcomes` plays."""
    return HealthCounts()


@pytest.fixture(scope="module")
def outcomes(health: HealthCounts) -> list[seeds.Outcome]:
    """What came of all seeds."""
    return [seeds.played(seed, health.decide) for seed in range(seeds.SEEDS)]


def broken(outcomes: list[seeds.Outcome]) -> str:
    return "\n".join(f"python -m tests.simulation --seed {o.seed} --verbose: {o.broken}" for o in outcomes if o.broken)


def test_the_first_seeds_break_no_rule() -> None:
    assert not broken([seeds.played(seed) for seed in range(5)])


@pytest.mark.slow
def test_no_seed_breaks_a_rule(outcomes: list[seeds.Outcome]) -> None:
    assert not broken(outcomes)


@pytest.mark.slow
def test_every_ladder_step_of_every_ladder_answers_at_least_five_times(outcomes: list[seeds.Outcome]) -> None:
    counts = seeds.reached(outcomes)
    few = [
        f"{cause} {ladder_step}: {counts[cause, ladder_step]}" for cause, ladder_step in seeds.ROWS if counts[cause, ladder_step] < LEAST
    ]
    assert not few
    assert sum(counts[cause, USERS_ROW] for cause in seeds.CAUSES) >= LEAST


@pytest.mark.slow
@pytest.mark.usefixtures("outcomes")
def test_nodes_that_get_worse_are_met_in_every_way(health: HealthCounts) -> None:
    ways = ("evicted", "alerted", "put out of use", "fewer ranks", "this node is left", "nobody answered")
    assert {way: health[way] for way in ways if health[way] < LEAST} == {}


@pytest.mark.slow
def test_every_documented_end_comes_up(outcomes: list[seeds.Outcome]) -> None:
    codes = {code for outcome in outcomes for code in outcome.codes}
    assert {0, 1, 65, 69, 75, 78, 124, 128 + 2, 128 + 15} <= codes


def jobs_of(outcomes: list[seeds.Outcome], rows: list[tuple[Cause, str]]) -> list[tuple[int, int]]:
    """The jobs, as (seed, number), in which one of the rows answered."""
    return [(o.seed, number) for o in outcomes for row in rows for number in o.jobs.get(row, ())]


@pytest.mark.slow
@pytest.mark.parametrize(("cause", "ladder_step"), seeds.ROWS, ids=[f"{cause} {ladder_step}" for cause, ladder_step in seeds.ROWS])
def test_without_any_one_row_a_seed_is_broken(
    cause: Cause, ladder_step: str, outcomes: list[seeds.Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LADDERS, cause, tuple(name for name in LADDERS[cause] if name != ladder_step))
    assert any(seeds.play_job(seed, number)[1] for seed, number in jobs_of(outcomes, [(cause, ladder_step)]))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", sorted({ladder_step for _, ladder_step in seeds.ROWS}))
def test_without_any_one_strategy_a_seed_is_broken(strategy: str, outcomes: list[seeds.Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    silence(monkeypatch, strategy)
    answered = [(cause, strategy) for cause in seeds.CAUSES]
    assert any(seeds.play_job(seed, number)[1] for seed, number in jobs_of(outcomes, answered))


def test_the_same_seed_is_the_same_history() -> None:
    first, again = (seeds.play_job(7, 3) for _ in range(2))
    assert first[0].journal == again[0].journal
    assert len(first[0].journal) > 10


@pytest.mark.slow
def test_a_seed_is_replayed_with_its_judge() -> None:
    judged = []

    def judge(state, event):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 (decide's own)
        judged.append(event)
        return decide(state, event)

    play, broken = seeds.play_job(1, 1, judge)
    assert not broken
    assert len(judged) >= play.events > 0
