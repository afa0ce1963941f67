"""Days of a large job: the core's decisions hold, the same seed is the same history, and the published figures are what is played."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from supervisor.core.model import Cause
from tests.simulation.faults import KINDS
from tests.simulation.fleet import comparison, rates
from tests.simulation.fleet.baselines import Requeue, Torchrun, played
from tests.simulation.fleet.rates import DAY_S
from tests.simulation.fleet.site import Account, Course, Site
from tests.simulation.fleet.supervised import FleetPlay, policy_of
from tests.support.figures import costs_at_most

ROOT = Path(__file__).parents[3]
RATE = rates.llama_rate()


def of_the_core(gpus: int, days: float, seed: int) -> tuple[FleetPlay, Account]:
    machines = comparison.machines_of(gpus, days, seed, RATE)
    play = FleetPlay(machines, policy_of(machines), Random(seed))  # noqa: S311 (worlds, not secrets)
    return play, play.play(days)


@pytest.mark.parametrize(("gpus", "days"), [(8, 20.0), (1024, 4.0), (16_384, 1.0), (131_072, 0.5)])
def test_the_core_keeps_its_invariants_and_the_time_adds_up(gpus: int, days: float) -> None:
    play, account = of_the_core(gpus, days, 1)
    assert account.total_s == pytest.approx(days * DAY_S)
    assert 0 < account.effective <= 1
    assert account.useful_s == pytest.approx(play.world.high * play.site.step_s, abs=2 * 60.0)  # the world is one sample ahead
    assert account.interruptions >= sum(fault.t < days * DAY_S - 3 * 3600 for fault in play.machines.faults) / 3


def test_the_same_seed_is_the_same_history() -> None:
    assert of_the_core(4096, 3.0, 5)[1] == of_the_core(4096, 3.0, 5)[1]
    assert of_the_core(4096, 3.0, 5)[1] != of_the_core(4096, 3.0, 6)[1]


def test_all_policies_meet_the_same_faults_and_their_time_adds_up() -> None:
    for policy in (Torchrun(), Requeue()):
        machines = comparison.machines_of(4096, 6.0, 3, RATE)
        account = played(machines, 6.0, policy)
        assert account.total_s == pytest.approx(6 * DAY_S)
        assert account.interruptions >= len(machines.faults) / 2


def test_a_job_without_faults_loses_its_saves_and_its_start() -> None:
    machines = comparison.machines_of(16_384, 1.0, 1, RATE)
    machines.faults = ()
    account = FleetPlay(machines, policy_of(machines), Random(1)).play(1.0)  # noqa: S311 (worlds, not secrets)
    course = machines.course
    share = course.every * course.site.step_s / (course.every * course.site.step_s + course.site.save_s)
    assert account.effective == pytest.approx(share * (1 - course.starts_s / DAY_S), abs=0.001)
    assert (account.interruptions, account.persons, account.redone_s) == (0, 0, pytest.approx(0.0, abs=10.0))


def test_the_published_rows_sum_to_the_published_total() -> None:
    total = rates.figure("unexpected interruptions")
    assert sum(rates.figure(kind.figure).value for kind in rates.KINDS) == total.value == 419
    in_table = {row.figure for row in rates.published() if "table 5" in row.source}
    assert in_table == {kind.figure for kind in rates.KINDS}
    assert all(row.source and row.date and row.how for row in rates.published())
    assert all(kind.cause is Cause.NONE or kind.cause in KINDS for kind in rates.KINDS)


def test_faults_come_as_often_as_was_published() -> None:
    counted = sum(len(rates.drawn(16_384, 54.0, RATE, Random(seed))) for seed in range(20)) / 20  # noqa: S311 (worlds, not secrets)
    assert counted == pytest.approx(419, rel=0.05)


def test_a_course_comes_as_far_as_its_parts() -> None:
    course = Course(Site(step_s=6.0, save_s=10.0), 16, every=10)
    assert course.reached(0.0) == (0, None, 0, False)
    assert course.reached(59.0) == (9, None, 0, False)
    assert course.reached(65.0) == (10, None, 0, True)  # within the save
    assert course.reached(70.0) == (10, 10, 1, False)
    assert course.reached(70.0 + 13.0) == (12, 10, 1, False)


def test_a_day_of_16384_gpus_is_played_in_seconds() -> None:
    with costs_at_most(10.0, "a day of 16,384 GPUs"):
        play, _ = of_the_core(16_384, 1.0, 2)
    assert play.events > 1000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tables_of_the_page_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "bench/fleet.py", "--write", "--check"],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=850, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run `python bench/fleet.py --write`"
