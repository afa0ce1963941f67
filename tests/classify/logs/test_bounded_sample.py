"""Of any number of findings a bounded number is kept, some of each kind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.classify.logs.bounded_sample import BoundedSample

MOST = 40
FINDINGS = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.one_of(st.none(), st.integers(0, 60))), max_size=400)


def kept(findings: list[tuple[str, int | None]]) -> list[int]:
    hits: BoundedSample[int] = BoundedSample(MOST, first=3, last=2)
    for number, (kind, rank) in enumerate(findings):
        hits.add(kind, rank, number)
        assert len(hits) == len(list(hits)) <= MOST
    return sorted(hits)


@given(FINDINGS)
def test_never_more_than_the_bound_and_something_of_each_kind(findings: list[tuple[str, int | None]]) -> None:
    assert {findings[number][0] for number in kept(findings)} == {kind for kind, _ in findings}


def test_of_a_kind_and_rank_the_first_and_the_last_are_kept() -> None:
    assert kept([("a", 0)] * 30) == [0, 1, 2, 28, 29]


def test_a_flood_of_one_kind_leaves_all_of_another() -> None:
    flood = [("flood", rank) for rank in range(5000)]
    assert set(range(4)) < set(kept([("a", 0), ("a", 1), ("b", None), ("a", 2), *flood]))
    assert {5000, 5001} < set(kept([*flood, ("a", 0), ("b", None)]))
