# ruff: noqa: D102, ANN401  the recorder does as the simulator that it records
"""The ledger of every job that the simulator draws: its states add up to the wall clock, whatever happened to the job."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.core.actions import Finish
from supervisor.journal.records import Body, Header, Record, RunBegan, RunEnded, decode, encode, event_taken, unframe
from supervisor.journal.writer import difference
from supervisor.view.job_view import fold
from supervisor.view.spans import NEW_STEPS, TimeState
from tests.simulation import seeds
from tests.simulation.engine import Play
from tests.simulation.invariants import Broken
from tests.support.ledgers import check_ledger

if TYPE_CHECKING:
    from supervisor.core import events
    from supervisor.core.state import JobState


class Recorded(Play):
    """A job whose journal is kept as a supervisor writes it, but for the disk."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.records: list[Record] = []
        self.is_fresh = True
        self.write(0.0, Header("job", "node"))

    def write(self, t: float, body: Body | None) -> None:
        self.records.append(Record(len(self.records) + 1, t, "", "", body))

    def feed(self, event: events.Event) -> None:
        if self.is_fresh:
            self.is_fresh = False
            self.write(event.t, RunBegan("run", continues=len(self.records) > 1))
        before = self.state
        judge = self.judge

        def judged(state: JobState, event: events.Event) -> Any:
            after, actions = judge(state, event)
            if after is not before or actions:
                taken = event_taken(
                    event, actions, attempt=after.attempt.number, stage=after.stage, state=difference(after, before), whole=False
                )
                plain = decode(unframe(encode(1, event.t, event.t, taken)) or b"")
                assert plain is not None
                self.write(event.t, plain.body)
            for action in actions:
                if isinstance(action, Finish):
                    self.write(event.t, RunEnded(action.exit_code))
            return after, actions

        self.judge = judged
        try:
            super().feed(event)
        finally:
            self.judge = judge

    def _restarted(self, after_s: float, left_t: float | None) -> None:
        self.is_fresh = True
        super()._restarted(after_s, left_t)


def recorded(seed: int, number: int) -> list[Record]:
    """Return the journal of one job."""
    play = Recorded(*seeds.job_of(seed, number))
    try:
        play.run()
    except Broken as error:
        pytest.fail(f"the simulation itself: {error}")
    return play.records


def check(seed: int) -> set[TimeState]:
    """Check the jobs of a seed, whole and with records missing; return the states that had time."""
    states: set[TimeState] = set()
    for number in range(seeds.JOBS):
        records = recorded(seed, number)
        (run,) = fold(records).ledgers()
        # an answer has the time at which it was asked for, so the last record may be older than one before it
        check_ledger(run, max(record.t for record in records) - records[1].t)
        states |= {state for state, took_s in run.seconds().items() if took_s}
        new_steps = math.fsum(span.steps for span in run.spans if span.state in NEW_STEPS)
        assert new_steps <= (run.reached or 0) + 1e-6, "a step was new twice"
        rng = Random(seed * 100 + number)  # noqa: S311 (journals, not secrets)
        kept = [record for record in records if isinstance(record.body, RunBegan) or rng.random() < 0.9]
        for ledger in fold(kept).ledgers():
            check_ledger(ledger, least_accounted=0.0)
    return states


@pytest.mark.slow  # the journals of all end-to-end tests are added up
def test_the_states_of_simulated_jobs_add_up() -> None:
    states = check(0)
    assert states > {TimeState.PRODUCTIVE, TimeState.REWORK, TimeState.START_AND_LOAD, TimeState.TEAR_DOWN, TimeState.PREEMPTED}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 41, 4))
def test_the_states_of_forty_more_seeds_add_up(first: int) -> None:
    assert TimeState.WAITING in set[TimeState]().union(*(check(seed) for seed in range(first, first + 4)))
