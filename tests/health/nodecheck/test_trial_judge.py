"""The judge: from what the meetings showed to who is to blame."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from health.model import Result
from health.nodecheck import report, schedule
from health.nodecheck.model import TOGETHER, Fault, Kind, Member, Sample, TrialEvidence
from health.nodecheck.trial_judge import judge, second_look

if TYPE_CHECKING:
    from collections.abc import Callable

    from health.nodecheck.model import Pair

MS = 1e-3


def _evidence(
    world: int,
    second: Callable[[Kind, Pair], float],
    failed: Callable[[int, Pair], bool] = lambda number, pair: False,  # noqa: ARG005  nothing fails
    *,
    machines: Callable[[int], int] = lambda rank: rank,
    lost: dict[int, str] | None = None,
) -> TrialEvidence:
    members = {rank: Member(rank, f"n{rank}", str(machines(rank)), "cuda:0", "H100") for rank in range(world)}
    samples = []
    for number, pair_trials in enumerate(schedule.schedule(world)):
        for pair_trial in pair_trials:
            pair = (pair_trial.a, pair_trial.b)
            for rank in pair:
                times = {kind: (second(kind, pair),) * 3 for kind in TOGETHER} | {Kind.COMPUTE: (second(Kind.COMPUTE, (rank, rank)),) * 3}
                samples.append(Sample(0, number, rank, pair_trial.partner(rank), times, "lost" if failed(number, pair) else ""))
    return TrialEvidence(members, tuple(samples), lost or {}, world=world)


def _even(kind: Kind, pair: Pair) -> float:
    return MS * (1 + 0.01 * ((sum(pair) + len(kind)) % 5))


def test_all_well_is_reported_with_how_much_was_looked_at() -> None:
    (result,) = report.results(_evidence(8, _even))
    assert result.result is Result.OK
    assert "8 of 8 ranks came; 84 meetings of 28 pairs" in result.reason


def test_a_rank_that_fails_with_several_is_bad_and_its_partners_are_not() -> None:
    judgement = judge(_evidence(8, _even, lambda number, pair: 5 in pair and number in (2, 9, 15)))
    assert set(judgement.failing) == {5}
    assert not judgement.failing_links
    assert not judgement.doubts


def test_two_that_always_fail_with_each_other_alone_have_a_bad_link() -> None:
    judgement = judge(_evidence(8, _even, lambda _, pair: pair == (1, 6)))
    assert set(judgement.failing_links) == {(1, 6)}
    assert not judgement.failing


def test_two_bad_links_of_one_rank_do_not_make_it_bad() -> None:
    judgement = judge(_evidence(8, _even, lambda _, pair: pair in {(1, 6), (1, 4)}))
    assert set(judgement.failing_links) == {(1, 6), (1, 4)}
    assert not judgement.failing


def test_one_failure_is_a_doubt_and_asks_for_a_second_look_at_both_ranks() -> None:
    known = _evidence(8, _even, lambda number, pair: number == 0 and pair == schedule.tournament(8)[0][0])
    pair = schedule.tournament(8)[0][0]
    assert set(judge(known).doubts) == {pair}
    results = [result for result in report.results(known) if result.result is Result.UNKNOWN]
    assert [result.subject for result in results] == [f"link:{pair[0]}-{pair[1]}"]
    assert report.exit_code(results) == 0
    suspects, good, again = second_look(known)
    assert (suspects, again) == ([*pair], [pair])
    assert not set(good) & set(pair)


def test_a_slow_rank_is_named_with_its_time_and_the_others() -> None:
    results = report.results(_evidence(8, lambda kind, pair: _even(kind, pair) * (3 if kind is Kind.COMPUTE and pair[0] == 3 else 1)))
    assert (results[0].subject, results[0].result, results[0].check) == ("rank:3", Result.FAILED, report.COMPUTE)
    assert "1.02 ms for the others (median of 7)" in results[0].evidence[0]


def test_unlike_models_are_not_compared_and_their_speeds_are_named() -> None:
    alike = _evidence(4, lambda kind, pair: MS * (2.5 if kind is Kind.COMPUTE and pair[0] > 1 else 1))
    known = replace(
        alike, members={rank: replace(result, model="small" if rank > 1 else "large") for rank, result in alike.members.items()}
    )
    outcome = report.to_json(known, report.results(known), 1.0, 0.0)
    assert outcome["speeds"] == [2.5, 2.5, 1.0, 1.0]
    assert "          speeds         2.5,2.5,1,1 by rank: what --knob grad_accum:planned:BATCH=plan: takes" in report.lines(outcome)
    assert not [line for line in report.lines(report.to_json(alike, (), 1.0, 0.0)) if "speeds" in line], "the slow are faulty"
    assert report.to_json(replace(known, world=5), (), 1.0, 0.0)["speeds"] == [], "one never came"


def test_a_little_slower_is_degraded_and_the_node_stays_fit() -> None:
    results = report.results(_evidence(8, lambda kind, pair: _even(kind, pair) * (1.4 if kind is Kind.COMPUTE and pair[0] == 3 else 1)))
    assert results[0].result is Result.DEGRADED
    assert report.exit_code(results) == 0


@pytest.mark.parametrize("kind", TOGETHER, ids=[kind.name for kind in TOGETHER])
def test_a_rank_slow_in_one_kind_only_is_found(kind: Kind) -> None:
    results = report.results(_evidence(4, lambda result, pair: _even(result, pair) * (4 if result is kind and 2 in pair else 1)))
    assert [result.subject for result in results if result.result is Result.FAILED] == ["rank:2"]
    assert ("computes and communicates at once" in results[0].reason) == (kind is Kind.OVERLAP)


def test_two_slow_ranks_of_four_do_not_hide_each_other() -> None:
    results = report.results(
        _evidence(4, lambda kind, pair: _even(kind, pair) * (4 if kind is not Kind.COMPUTE and {0, 1} & set(pair) else 1))
    )
    assert {result.subject for result in results if result.result is Result.FAILED} == {"rank:0", "rank:1"}


def test_pairs_within_a_machine_are_not_compared_with_pairs_between() -> None:
    known = _evidence(8, lambda kind, pair: _even(kind, pair) * (1 if pair[0] // 4 == pair[1] // 4 else 9), machines=lambda rank: rank // 4)
    assert [result.result for result in report.results(known)] == [Result.OK]


@pytest.mark.parametrize(("device", "slow_meetings", "accused"), [("cuda:0", 2, True), ("cpu", 2, False), ("cpu", 3, True)])
def test_where_ranks_share_a_cpu_one_good_meeting_acquits_a_link(device: str, slow_meetings: int, *, accused: bool) -> None:
    known = _evidence(8, _even, machines=lambda _: 0)
    met = sorted(sample.number for sample in known.samples if sample.rank == 1 and sample.partner == 6)
    samples = tuple(
        replace(sample, seconds={kind: tuple(6 * time for time in times) for kind, times in sample.seconds.items()})
        if sample.pair == (1, 6) and sample.number in met[:slow_meetings]
        else sample
        for sample in known.samples
    )
    members = {rank: replace(result, device=device) for rank, result in known.members.items()}
    judgement = judge(replace(known, members=members, samples=samples))
    assert ((1, 6) in judgement.slow_links) is accused
    assert not judgement.slow_ranks


def test_a_pair_that_failed_with_a_lost_rank_accuses_nobody() -> None:
    results = report.results(_evidence(8, _even, lambda number, pair: 4 in pair and number > 5, lost={4: "no sign of life for 8 s"}))
    assert [(result.subject, result.result) for result in results] == [("rank:4", Result.FAILED), ("host", Result.OK)]


def test_two_ranks_cannot_tell_whose_fault_it_is() -> None:
    results = report.results(_evidence(2, _even, lambda number, _: number == 3))
    assert {result.result for result in results} == {Result.UNKNOWN}


@pytest.mark.parametrize("world", [2, 3, 7, 8])
def test_everybody_meets_everybody(world: int) -> None:
    rounds = schedule.tournament(world)
    pairs = [pair for pairs in rounds for pair in pairs]
    assert len(pairs) == len(set(pairs)) == world * (world - 1) // 2
    for pair_trials in rounds:
        busy = [rank for pair in pair_trials for rank in pair]
        assert len(busy) == len(set(busy))


def test_many_ranks_take_no_more_rounds() -> None:
    assert len(schedule.schedule(512)) == schedule.ROUNDS
    partners = {
        pair_trial.partner(7) for pair_trials in schedule.schedule(512) for pair_trial in pair_trials if 7 in (pair_trial.a, pair_trial.b)
    }
    assert len(partners) == schedule.ROUNDS


@pytest.mark.parametrize("text", ["fail:1", "burn:1:2", "fail:x:2", "fail:1-2:0.5", "slow-link:1:0.5"])
def test_a_fault_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no fault"):
        Fault.parse(text)
