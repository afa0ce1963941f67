"""Which node is slow, by nodes that are made up: one whose ranks compute, and others that wait for it. The clock is the test's."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from supervisor.observe.pace.judge import NodePace, PaceJudge, RankSample
from supervisor.observe.pace.nodes import NodesJudge
from tests.support.few import few

MINUTE_S = 60.0
#: By then the first two windows of the training are over, and a whole one was measured.
MEASURED_S = 3 * MINUTE_S


@dataclass
class Job:
    """Nodes of some ranks each that train in step, from `begin` on: a step takes as long as the slowest rank computes, and the exchange.

    compute: seconds that a rank of a node computes in a step that begins at a time. apart: the nodes do not wait for each other.
    trains: whether the ranks of a node are seen to train. heard: whether a node's beats arrive. pause: seconds that a node's step takes
    longer. slow_rank: the only one of its node that is as slow as `compute` has it.
    """

    nodes: int
    compute: Callable[[int, float], float]
    ranks: int = 2
    exchange_s: float = 0.05
    apart: bool = False
    trains: Callable[[int, float], bool] = lambda _node, _t: True
    heard: Callable[[int, float], bool] = lambda _node, _t: True
    pause: Callable[[int, float], float] = lambda _node, _t: 0.0
    slow_rank: int | None = None
    news: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def run(self, until_s: float, begin: float = 0.0) -> list[str]:
        """Return what was reported: `+node rank minute` and `-node rank minute`, the minutes from the beginning."""
        judges = [PaceJudge() for _ in range(self.nodes)]
        nodes, sent = NodesJudge(), dict[str, NodePace]()
        clocks, steps, busy = [begin] * self.nodes, [0] * self.nodes, [[0.0] * self.ranks for _ in range(self.nodes)]
        sampled, compared = [begin] * self.nodes, begin
        while min(clocks) < begin + until_s:
            own = [[self._own(node, rank, clocks[node]) for rank in range(self.ranks)] for node in range(self.nodes)]
            together = max(max(row) + self.pause(node, clocks[node]) for node, row in enumerate(own)) + self.exchange_s
            for node in range(self.nodes):
                took = max(own[node]) + self.exchange_s + self.pause(node, clocks[node]) if self.apart else together
                clocks[node] += took
                steps[node] += 1
                busy[node] = [so_far + seconds for so_far, seconds in zip(busy[node], own[node], strict=True)]
                if clocks[node] - sampled[node] < 1.0:
                    continue
                sampled[node] = clocks[node]
                is_training, t_ns = self.trains(node, clocks[node]), int(1e9 * clocks[node])
                judges[node].take(
                    clocks[node],
                    {
                        node * self.ranks + rank: RankSample(steps[node], t_ns, int(1e9 * seconds), 0, is_blocked=False, trains=is_training)
                        for rank, seconds in enumerate(busy[node])
                    },
                )
            if min(clocks) - compared >= 10.0:
                compared = min(clocks)
                beats = {f"{node}": judge.node_pace() for node, judge in enumerate(judges) if self.heard(node, clocks[node])}
                sent |= {node: pace for node, pace in beats.items() if pace is not None}
                for change in nodes.take(compared, sent):
                    sign, minute = "-" if change.is_over else "+", round((compared - begin) / MINUTE_S)
                    self.news.append(f"{sign}{change.node} {change.rank} {minute}")
                    self.texts.append(change.text(f"node {change.node}"))
        return self.news

    def _own(self, node: int, rank: int, t: float) -> float:
        if self.slow_rank is not None and rank != self.slow_rank:
            return self.compute(-1, t)
        return self.compute(node, t)


def slow(
    *nodes: int, factor: float = 1.5, base_s: float = 0.5, since_s: float = 0.0, until_s: float = 1e9
) -> Callable[[int, float], float]:
    return lambda node, t: base_s * (factor if node in nodes and since_s <= t < until_s else 1.0)


def test_a_slow_node_is_named_once_after_five_minutes() -> None:
    job = Job(4, slow(2))
    assert job.run(20 * MINUTE_S) == ["+2 None 8"]
    assert job.texts == [
        "node 2 computes 1.5 times as long per step as the others (0.75 s by itself, the others 0.5 s), and the others wait for it"
    ]


def test_of_a_node_with_one_slow_rank_the_rank_is_named() -> None:
    job = Job(4, slow(2), ranks=8, slow_rank=3)
    assert job.run(10 * MINUTE_S) == ["+2 19 8"]
    assert job.texts[0].endswith("and the others wait for it: rank 19")


def test_of_two_nodes_the_slower_one_is_named_and_no_other() -> None:
    assert Job(2, slow(1)).run(15 * MINUTE_S) == ["+1 None 8"]


@pytest.mark.parametrize("nodes", few([4, 3, 8]))
def test_two_slow_nodes_do_not_hide_each_other(nodes: int) -> None:
    assert Job(nodes, slow(0, 2, factor=2.0)).run(10 * MINUTE_S) == ["+0 None 8", "+2 None 8"]


def test_nodes_that_do_not_wait_for_each_other_are_compared_by_their_steps() -> None:
    job = Job(4, slow(2), apart=True)
    assert job.run(10 * MINUTE_S) == ["+2 None 8"]
    assert "wait for it" not in job.texts[0]


def test_a_node_that_recovers_is_over_after_a_minute_or_two() -> None:
    job = Job(4, slow(2, until_s=12 * MINUTE_S))
    assert job.run(20 * MINUTE_S) == ["+2 None 8", "-2 None 13"]
    assert job.texts[1] == "node 2 is as fast as the others again"


def test_the_sentence_holds_facts_of_the_kernel_and_the_health_checks() -> None:
    judge, changes = NodesJudge(), []
    for at in range(40):
        slow_pace = NodePace(at, 0.5, 0.95, 43, "waits for a processor 40 % of the time, because others use them", stolen=0.3)
        changes += judge.take(10.0 * at, {"gpu-5": slow_pace, "gpu-6": NodePace(at, 0.5, 0.5, 50)})
    (change,) = changes
    assert change.text("node 5 (gpu-5)", "GPU 3", "GPU 3 is throttled: heat") == (
        "node 5 (gpu-5) computes 1.9 times as long per step as the others (0.475 s by itself, the others 0.25 s), and the others wait for "
        "it: rank 43 waits for a processor 40 % of the time, because others use them (GPU 3); health: GPU 3 is throttled: heat; "
        "the hypervisor keeps 30 % of its processors' time"
    )


NOBODY: dict[str, Job] = {
    "all are slow: the disk of all": Job(4, slow(0, 1, 2, 3, since_s=MEASURED_S)),
    "one is slower by 15 %": Job(4, slow(2, factor=1.15)),
    "all are alike": Job(4, slow()),
    "one is slow for 4 minutes": Job(4, slow(2, since_s=MEASURED_S, until_s=MEASURED_S + 4 * MINUTE_S)),
    "one is slow for 4 minutes, and again": Job(4, lambda node, t: 0.75 if node == 2 and t % 360 < 240 else 0.5),
    "another one each minute": Job(4, lambda node, t: 1.0 if node == t // MINUTE_S % 4 else 0.5),
    "the others hardly compute, and all wait": Job(4, slow(2, base_s=0.01), exchange_s=0.5),
    "one loads its first batch": Job(4, lambda node, t: 100.0 if node == 1 and t == 0 else 0.5),
    "one evaluates, as its ranks say": Job(
        4, lambda node, t: 5.0 if node == 0 and t % 600 > 200 else 0.5, trains=lambda node, t: node != 0 or t % 600 <= 200
    ),
    "one evaluates for 5 minutes, and says nothing": Job(4, slow(), pause=lambda node, t: 300.0 if node == 0 and t % 900 < 1 else 0.0),
    "one is not heard, and was slow": Job(4, slow(2), heard=lambda node, t: node != 2 or t < MEASURED_S + 2 * MINUTE_S),
    "there is no other that is heard": Job(2, slow(1), heard=lambda node, _t: node == 1),
}


@pytest.mark.parametrize("minutes", few([16, 25]))
@pytest.mark.parametrize("name", few(NOBODY, 2))
def test_no_node_is_called_slow(name: str, minutes: int) -> None:
    assert replace(NOBODY[name], news=[], texts=[]).run(minutes * MINUTE_S) == []


def test_a_slow_node_that_is_not_heard_for_a_while_is_still_slow_and_is_named_once() -> None:
    job = Job(4, slow(2), heard=lambda node, t: node != 2 or not 10 * MINUTE_S < t < 13 * MINUTE_S)
    assert job.run(20 * MINUTE_S) == ["+2 None 8"]


def test_steps_of_two_minutes_are_compared_too() -> None:
    assert [news.split()[0] for news in Job(3, slow(1, base_s=80.0)).run(90 * MINUTE_S)] == ["+1"]


def test_time_in_which_the_comparing_supervisor_was_away_counts_for_nobody() -> None:
    judge, t = NodesJudge(), 0.0
    for at in range(20):
        t += 10.0 if at < 19 else 600.0
        assert judge.take(t, {"a": NodePace(at, 0.5, 0.95), "b": NodePace(at, 0.5, 0.5)}) == []


@pytest.mark.parametrize("seeds", few([range(6), range(6, 30)]))
def test_healthy_jobs_with_noise_evaluations_and_saves_raise_no_alert(seeds: range) -> None:
    for seed in seeds:
        source = random.Random(seed)  # noqa: S311  no secret
        nodes, base, spread, every = source.choice([2, 3, 8]), source.uniform(0.3, 3), source.uniform(0.02, 0.3), source.uniform(100, 1000)
        skew = [source.uniform(0.95, 1.05) for _ in range(nodes)]

        def compute(node: int, _t: float) -> float:
            return base * skew[node] * source.lognormvariate(0, spread)  # noqa: B023  run within the round

        def pause(node: int, t: float) -> float:
            return 30 * base if node == 0 and t % every < base else 0.0  # noqa: B023  as above

        job = Job(nodes, compute, exchange_s=base * source.uniform(0.05, 1), pause=pause)
        assert job.run(1200.0) == [], (seed, job.texts)


def test_a_thousand_nodes_are_compared_in_ten_milliseconds_of_a_processor() -> None:
    source = random.Random(1)  # noqa: S311  no secret
    judge = NodesJudge()
    spent_s = []
    for at in range(10):
        paces = {f"gpu-{node}": NodePace(at, 0.5, source.uniform(0.5, 1.0), 8 * node) for node in range(1000)}
        began_s = time.thread_time()
        judge.take(10.0 * at, paces)
        spent_s.append(time.thread_time() - began_s)
    assert min(spent_s) < 0.01
