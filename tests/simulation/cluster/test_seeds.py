"""Every seed keeps the laws, whatever is lost, and the faults meet every part of the protocol."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from supervisor.cluster.messages import (
    ActOn,
    Began,
    ClosedWithoutUs,
    CoordinatorSilent,
    Ended,
    Gathered,
    JudgeReports,
    Looked,
    LooksGathered,
    LookWanted,
    MeetingFailed,
    StepAside,
)
from supervisor.cluster.model import DONE, FAILURE, LEFT, MEMBERSHIP, RESTART, STOP, SUCCESS, VOID
from tests.simulation.cluster.core import SimulatedCore
from tests.simulation.cluster.faults import STEPS, cuts_and_resets, kills_host, kills_it, pauses_everyone, replaces_host, world_of
from tests.simulation.cluster.laws import LawBroken
from tests.simulation.cluster.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.cluster.coordinator import CoordinatorOutput
    from supervisor.cluster.member import MemberOutput
    from tests.simulation.cluster.world import Machine

SEEDS, A_CHUNK = 50, 25
ALL_SEEDS, ALL_CHUNK = 10_000, 500


def broken(first: int, count: int) -> str:
    """Play seeds; return those in which a law does not hold."""
    failures = []
    for seed in range(first, first + count):
        try:
            world_of(seed).play()
        except LawBroken as law:
            failures.append(f"seed {seed}: {law}")
    return "\n".join(failures)


@pytest.mark.parametrize("first", range(0, SEEDS, A_CHUNK))
def test_no_law_is_broken(first: int) -> None:
    assert not broken(first, A_CHUNK)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(SEEDS, ALL_SEEDS, ALL_CHUNK))
def test_no_law_is_broken_in_any_of_many_seeds(first: int) -> None:
    assert not broken(first, min(ALL_CHUNK, ALL_SEEDS - first))


@pytest.mark.parametrize("dies", [kills_it, *(pytest.param(strike, marks=pytest.mark.slow) for strike in (kills_host, replaces_host))])
@pytest.mark.parametrize("step", STEPS)
def test_a_node_may_die_while_it_takes_a_step_or_serves_the_coordinator(
    step: str, dies: Callable[[World], Callable[[Machine], None]]
) -> None:
    struck = []
    for seed in range(1000, 1040):
        if len(struck) == 5:
            return
        world = world_of(seed)
        strikes = dies(world)
        world.triggers, world.work_s = (
            [(step, 1, lambda machine, strikes=strikes: (struck.append(machine), strikes(machine))[1])],
            (5.0, 40.0),
        )  # type: ignore[misc]
        world.play()
    pytest.fail(f"only {len(struck)} were struck")


def test_every_answer_of_the_protocol_comes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    met: Counter[str] = Counter()
    take = SimulatedCore.take

    def counted(core: SimulatedCore, output: MemberOutput | CoordinatorOutput) -> None:
        met[type(output).__name__] += 1
        if isinstance(output, ActOn):
            met[output.decision.kind] += 1
        if isinstance(output, Ended):
            met[output.end.kind] += 1
        take(core, output)

    monkeypatch.setattr(SimulatedCore, "take", counted)
    answers = (Began, Ended, JudgeReports, ActOn, StepAside, ClosedWithoutUs, CoordinatorSilent, MeetingFailed, Gathered)
    looks = (LookWanted, LooksGathered, Looked)
    kinds = (RESTART, STOP, SUCCESS, VOID, FAILURE, MEMBERSHIP, LEFT, DONE)
    names = {*(kind.__name__ for kind in (*answers, *looks)), *kinds}
    for seed in (144, *range(60)):  # a void attempt is rare
        if names <= met.keys():
            break
        world_of(seed).play()
    assert names - met.keys() == set()


@pytest.mark.parametrize("disturb", [pauses_everyone, cuts_and_resets])
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(10, 300, 10))])
def test_a_pause_of_30_s_or_a_connection_that_is_back_within_10_s_ends_nothing(first: int, disturb: Callable[[World], None]) -> None:
    for seed in range(first, first + 10):
        world = World(seed)
        disturb(world)
        world.play()
        assert len(world.books.begun) == 1, f"seed {seed}: {world.books.begun}"


def test_the_same_seed_is_the_same_history() -> None:
    first, again = world_of(3), world_of(3)
    first.play()
    again.play()
    assert (first.t, first.books) == (again.t, again.books)
    assert first.books.begun
