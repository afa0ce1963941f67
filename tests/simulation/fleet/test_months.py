"""Ninety days of a job on 1,024 GPUs, with the default settings: it ends with 0, and no person has to act."""

from __future__ import annotations

import pytest

from supervisor.core.failure.planning import KEPT_FAILURES, KEPT_FINGERPRINTS
from supervisor.errors import ExitCode
from tests.simulation.fleet import months, rates
from tests.simulation.fleet.months import Months

#: Jobs that need nobody; of all others, a few do.
SEEDS = 20
ALL_SEEDS, BLOCK = 1000, 50
#: Of a block, jobs to which a person came. Two bugs of the program that look the same may meet within ten steps, or four within an hour, by
#: chance: a person looks at that, as at a bug that is there each time. All other ends are the product's fault.
MOST_WITH_A_PERSON = 4
BY_CHANCE = ("65: the same error came again", "65: the loss or the gradients are NaN or infinite again", "1: failed ")
#: What a scheduler answers with another start, by itself.
STARTED_AGAIN = {ExitCode.REQUEUE, ExitCode.BAD_NODE}


def check_needs_nobody(job: Months) -> None:
    """Check that a job came to a good end by itself, though it was preempted each day."""
    assert job.persons == 0, f"seed {job.seed}: {dict(job.reasons)}"
    assert job.ends[ExitCode.DONE] == 1
    assert set(job.ends) <= {ExitCode.DONE, *STARTED_AGAIN}
    assert job.step == job.total
    assert sum(job.ends.values()) > months.DAYS
    assert job.restarts > 200
    assert job.most_kept <= KEPT_FAILURES
    assert len(job.state.run.recurrences) <= KEPT_FINGERPRINTS


def test_a_job_of_ninety_days_comes_to_its_end_and_needs_nobody() -> None:
    check_needs_nobody(Months(0).play())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, ALL_SEEDS, BLOCK))
def test_of_a_thousand_jobs_of_ninety_days_few_need_a_person_and_only_by_chance(first: int) -> None:
    played = [Months(seed).play() for seed in range(first, first + BLOCK)]
    for job in played:
        if job.seed < SEEDS:
            check_needs_nobody(job)
    reasons = [why for job in played for why, count in job.reasons.items() if count]
    assert [why for why in reasons if not why.startswith(BY_CHANCE)] == []
    assert sum(job.persons > 0 for job in played) <= MOST_WITH_A_PERSON
    assert all(job.ends[ExitCode.DONE] == 1 and job.step == job.total for job in played)
    print(months.report(played))  # noqa: T201 (the figure, with pytest -s)


def test_faults_come_as_often_as_was_measured_and_more_often_on_bad_days() -> None:
    hours = rates.figure("mean time to failure", months.GPUS).value
    quiet = sum(sum(not blow.bad_day for blow in Months(seed).blows) for seed in range(10)) / 10
    assert quiet == pytest.approx(3 * months.DAYS * 24 / hours, rel=0.1)
    assert all(any(blow.bad_day for blow in Months(seed).blows) for seed in range(10))
