"""Healthy simulated jobs are never confirmed to hang, and a hang of each of them is, in time."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import pytest

from supervisor.core.events import HangConfirmed
from supervisor.observe.hangs.judge import BUSY_TIMES, CONFIRM_S, MOST_PATIENCE
from tests.support.healthy_jobs import FAMILIES, SimulatedJob

RUN_S = 4000.0


@dataclass(frozen=True, slots=True)
class Examined:
    """One job: its false alarms while it ran, and after how long its hang was confirmed, None: too late. limit_s: of its stillness then.

    is_known: it made steps, or uses no CPU time: a job that only computes, and never made a step, may be inference.
    """

    seed: int
    family: str
    how: str
    false_alarms: int
    limit_s: float
    confirmed_s: float | None
    is_known: bool = True


def examine(seed: int) -> Examined:
    """Run a job, then hang it.

    It takes one limit at most until a busy job is examined again and cleared, then the limit with all the patience, then two looks.
    """
    job = SimulatedJob(seed)
    job.runs(max(RUN_S, min(40 * job.usual_s, 20_000.0)))
    false_alarms = sum(isinstance(event, HangConfirmed) for event in job.posted)
    how, limit_s = job.dice.choice(["stands", "spins"]), job.watch._times.limit(job.beats, job.limits).seconds  # noqa: SLF001
    due_s = ((MOST_PATIENCE + 1) * limit_s + 4 * CONFIRM_S) * (1.0 if how == "stands" else BUSY_TIMES)
    is_known = how == "stands" or any(beat.last_step_ns is not None for beat in job.beats)
    return Examined(seed, job.family, how, false_alarms, limit_s, job.hangs(how, due_s), is_known)


def check(seeds: range) -> list[Examined]:
    """Examine each."""
    results = [examine(seed) for seed in seeds]
    assert [result for result in results if result.false_alarms] == [], "healthy jobs were confirmed to hang"
    assert [result for result in results if (result.confirmed_s is None) == result.is_known] == [], "hangs were not confirmed in time"
    return results


def limits(rows: list[Examined], how: str) -> float:
    """Return after how many limits such a hang is usually confirmed."""
    return median((row.confirmed_s or 0.0) / row.limit_s for row in rows if row.how == how and row.is_known)


def test_twenty_healthy_jobs() -> None:
    assert {row.family for row in check(range(20))} == set(FAMILIES), "each family is among them"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_healthy_jobs() -> None:
    rows = check(range(1000, 2020))
    assert limits(rows, "stands") < 2.0
    assert limits(rows, "spins") < 1.2 * BUSY_TIMES
