"""Who is slow, by samples of ranks that are made up: a rank that computes, and peers that wait for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from supervisor.observe.pace.judge import PaceJudge, RankSample

WINDOW_S = 20.0


@dataclass
class Job:
    """A synchronous training: each step takes as long as the slowest rank computes, and what the exchange takes.

    compute: seconds that a rank computes in a step. spins: the ranks are busy while they wait. pause: seconds that a step takes longer.
    trains: whether the ranks are seen to train after this step.
    """

    ranks: int
    compute: Callable[[int, int], float]
    exchange_s: float = 0.02
    spins: bool = False
    waits_share: float = 0.0
    blocks: int = -1
    pause: Callable[[int], float] = lambda _step: 0.0
    trains: Callable[[int], bool] = lambda _step: True
    reports: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def run(self, until_s: float = 200.0) -> list[str]:
        """Return what was reported: `+kind rank` and `-kind rank`."""
        judge, t, step = PaceJudge(WINDOW_S), 0.0, 0
        run_ns, wait_ns = [0.0] * self.ranks, [0.0] * self.ranks
        sampled_t = 0.0
        while t < until_s:
            step += 1
            own = [self.compute(rank, step) for rank in range(self.ranks)]
            took = max(own) + self.exchange_s + self.pause(step)
            t += took
            for rank in range(self.ranks):
                busy_ns = 1e9 * (took if self.spins else own[rank])
                waited = self.waits_share if rank == self.ranks - 1 else 0.0
                run_ns[rank] += busy_ns * (1 - waited)
                wait_ns[rank] += busy_ns * waited
            if t - sampled_t < 1.0:
                continue
            sampled_t = t
            samples = {
                rank: RankSample(step, int(1e9 * t), int(run_ns[rank]), int(wait_ns[rank]), rank == self.blocks, self.trains(step))
                for rank in range(self.ranks)
            }
            for news in judge.take(t, samples):
                sign = "-" if news.is_over else "+"
                self.reports.append(f"{sign}{news.kind.value}" + ("" if news.rank is None else f" {news.rank}"))
                self.texts.append(news.text)
        return self.reports


def slow(factor: float, rank: int = 1, base_s: float = 0.1) -> Callable[[int, int], float]:
    return lambda number, _step: base_s * (factor if number == rank else 1.0)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("factor", [1.5, 2.0, 20.0])
def test_a_rank_that_computes_longer_is_named_with_how_much_longer(ranks: int, factor: float) -> None:
    job = Job(ranks, slow(factor))
    assert job.run() == ["+straggler 1"]
    assert ("alone computes" if factor > 10 else f"{factor:.1f} times") in job.texts[0]


def test_steps_of_half_a_minute_are_judged_too() -> None:
    assert Job(4, slow(2.0, base_s=20.0)).run(1500) == ["+straggler 1"]


def test_a_straggler_that_recovers_is_over() -> None:
    job = Job(4, lambda rank, step: 0.2 if rank == 1 and step < 600 else 0.1)
    assert job.run(300)[:2] == ["+straggler 1", "-straggler 1"]


def test_the_kernels_figures_name_the_cause_of_a_slow_rank() -> None:
    job = Job(2, slow(2.0), waits_share=0.5)
    job.run()
    assert "it waits for a processor 4" in job.texts[0], job.texts
    job = Job(2, slow(2.0), blocks=1)
    job.run()
    assert "it waits for a disk or a network file system 100 % of the time" in job.texts[0]


NO_STRAGGLER: dict[str, Job] = {
    "by a quarter": Job(4, slow(1.25)),
    "busier, but all wait for something else": Job(4, slow(3.0, base_s=0.01), exchange_s=0.2),
    "spinning": Job(4, slow(2.0), spins=True),
    "alone": Job(1, slow(2.0)),
    "now and then": Job(4, lambda rank, step: 0.3 if rank == 1 and step % 20 == 0 else 0.1),
    "another one each time": Job(4, lambda rank, step: 0.3 if rank == step // 7 % 4 else 0.1),
    "in evaluations only": Job(2, lambda rank, step: 0.5 if rank == 1 and step % 200 > 150 else 0.1, trains=lambda step: step % 200 <= 150),
    "within the first two windows": Job(4, lambda rank, step: 0.3 if rank == 1 and step < 130 else 0.1),
}


@pytest.mark.parametrize("name", NO_STRAGGLER)
def test_no_rank_is_called_slow(name: str) -> None:
    assert NO_STRAGGLER[name].run() == []


def test_a_training_that_becomes_slow_is_reported_once_and_once_that_it_is_over() -> None:
    job = Job(2, slow(1.0), pause=lambda step: 0.2 if 1500 < step < 2200 else 0.0)
    assert job.run(700) == ["+drop", "-drop"]
    assert job.texts[0] == "a step takes 0.32 s, 2.7 times as long as it did (0.12 s)"


@pytest.mark.parametrize(
    "job",
    [
        Job(2, slow(1.0), pause=lambda step: 0.1 if step > 1500 else 0.0),
        Job(2, slow(1.0), pause=lambda step: 3.0 if step < 20 else 0.0),
        Job(2, slow(1.0), pause=lambda step: 20.0 if step % 100 == 0 else 0.0),
        Job(2, slow(1.0), pause=lambda step: 0.5 if 1500 < step < 1540 else 0.0),
    ],
    ids=["not twice", "slow at first", "long pauses", "one short stretch"],
)
def test_no_training_is_called_slow(job: Job) -> None:
    assert job.run(500) == []


@pytest.mark.slow
def test_two_hundred_healthy_jobs_with_noise_evaluations_and_saves_raise_no_alert() -> None:
    for seed in range(200):
        source = random.Random(seed)  # noqa: S311  no secret
        ranks, base, spread, every = (
            source.choice([1, 2, 4, 8]),
            source.uniform(0.05, 3),
            source.uniform(0.02, 0.5),
            source.choice([50, 500]),
        )
        skew = [source.uniform(0.9, 1.1) for _ in range(ranks)]

        def compute(rank: int, _step: int) -> float:
            return base * skew[rank] * source.lognormvariate(0, spread)  # noqa: B023  run within the round

        def pause(step: int) -> float:
            heavy = 10 * base if source.random() < 0.01 else 0.0  # noqa: B023  as above
            return heavy + (30 * base if step % every == 0 else 0.0)  # noqa: B023

        job = Job(ranks, compute, exchange_s=base * source.uniform(0.05, 2), pause=pause, spins=source.random() < 0.3)
        assert job.run(400) == [], (seed, job.texts)
