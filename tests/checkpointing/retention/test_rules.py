"""Which copies may go: by examples, and by laws that hold for every set of copies and every policy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.model import Lineage, Verdict
from checkpointing.ordering import age
from checkpointing.retention.rules import RetainedItem, RetentionPolicy, may_go

if TYPE_CHECKING:
    from collections.abc import Iterable

lineages = st.builds(lambda run, attempt: Lineage(run, f"run-{run}", attempt), st.integers(0, 3), st.integers(0, 2))
ages = st.builds(
    lambda step, lineage, saved_s, gone: age(step, None, lineage, mtime_ns=saved_s * 10**9, is_rolled_back=gone),
    st.one_of(st.none(), st.integers(0, 50)),
    lineages,
    st.integers(0, 20),
    st.booleans(),
)
copies = st.lists(
    st.builds(
        lambda name, at, **more: RetainedItem(name, at._replace(name=name), **more),
        name=st.text("abcdefghij", min_size=1, max_size=3),
        at=ages,
        verdict=st.sampled_from(Verdict),
        in_use=st.booleans(),
        uploading=st.booleans(),
        is_finite=st.booleans(),
    ),
    max_size=15,
    unique_by=lambda item: item.name,
)
policies = st.builds(RetentionPolicy, newest=st.integers(0, 5), every=st.one_of(st.none(), st.integers(0, 12)))


def held(step: int | None, verdict: Verdict = Verdict.VERIFIED, **more: bool) -> RetainedItem:
    return RetainedItem(f"{step}", age(step, None), verdict, **more)


def names(gone: Iterable[RetainedItem]) -> list[str]:
    return [item.name for item in gone]


@pytest.mark.parametrize(
    ("steps", "policy", "go"),
    [
        ((1, 2, 3), RetentionPolicy(2), (1,)),
        ((1, 2, 3), RetentionPolicy(0), (1, 2)),
        ((3, 1, 2), RetentionPolicy(1), (1, 2)),
        ((10, 20, 30, 40, 50), RetentionPolicy(1, every=20), (30,)),  # the first of each twenty steps: 10, 20, 40
        ((5,), RetentionPolicy(1), ()),
        ((), RetentionPolicy(1), ()),
    ],
    ids=str,
)
def test_the_newest_and_every_kth_stay(steps: tuple[int, ...], policy: RetentionPolicy, go: tuple[int, ...]) -> None:
    assert tuple(item.age.step for item in may_go(map(held, steps), policy)) == go


def test_damaged_copies_go_first_but_only_beside_a_verified_one() -> None:
    bad = held(9, Verdict.BAD)
    assert may_go([bad], RetentionPolicy(1)) == ()
    assert may_go([bad, held(1), held(2)], RetentionPolicy(1)) == (bad, held(1))


def test_of_unknown_verdict_nothing_goes() -> None:
    unknown = [held(step, verdict) for step, verdict in enumerate(Verdict) if verdict not in (Verdict.VERIFIED, Verdict.BAD)]
    assert may_go([*unknown, held(99)], RetentionPolicy(1)) == ()


@given(copies, policies)
def test_a_verified_copy_always_stays_and_needed_ones_are_never_named(given_copies: list[RetainedItem], policy: RetentionPolicy) -> None:
    gone = may_go(given_copies, policy)
    assert len(set(gone)) == len(gone)
    assert all(item in given_copies and item.verdict in (Verdict.VERIFIED, Verdict.BAD) for item in gone)
    assert not any(item.in_use or item.uploading for item in gone)
    left = [item for item in given_copies if item not in gone]
    if any(item.verdict is Verdict.VERIFIED for item in given_copies):
        assert any(item.verdict is Verdict.VERIFIED for item in left)
    else:
        assert not gone
    verified = [item for item in given_copies if item.verdict is Verdict.VERIFIED]
    assert not verified or min(verified, key=lambda item: item.age) in left


@given(copies, policies)
def test_the_newest_finite_one_always_stays(given_copies: list[RetainedItem], policy: RetentionPolicy) -> None:
    finite = [copy for copy in given_copies if copy.verdict is Verdict.VERIFIED and copy.is_finite]
    assert not finite or min(finite, key=lambda copy: copy.age) not in may_go(given_copies, policy)


def test_where_the_weights_turned_the_newest_finite_one_stays_too() -> None:
    turned = [held(step, is_finite=False) for step in (3, 4)]
    assert names(may_go([held(1), held(2), *turned], RetentionPolicy(1))) == ["1", "3"]
    assert names(may_go(turned, RetentionPolicy(1))) == ["3"]


def of(run: int, attempt: int, step: int) -> RetainedItem:
    return RetainedItem(f"{run}.{attempt}.{step}", age(step, None, Lineage(run, f"run-{run}", attempt)), Verdict.VERIFIED)


def test_a_lower_step_of_a_later_run_or_attempt_is_the_newer_one() -> None:
    earlier = [of(1, 1, 99_000), of(1, 1, 100_000)]
    assert names(may_go([*earlier, of(2, 1, 500)], RetentionPolicy(2))) == ["1.1.99000"]
    assert names(may_go([*earlier, of(2, 1, 500), of(2, 1, 1000)], RetentionPolicy(2))) == ["1.1.99000", "1.1.100000"]
    rolled_back = [of(1, 1, 800), of(1, 1, 900), of(1, 1, 1000), of(1, 2, 850)]
    assert names(may_go(rolled_back, RetentionPolicy(2))) == ["1.1.800", "1.1.900"]
    assert names(may_go([*rolled_back, of(1, 2, 890)], RetentionPolicy(2))) == ["1.1.800", "1.1.900", "1.1.1000"]


def test_the_copy_just_made_stays_whatever_the_order_says() -> None:
    held = [of(1, 1, 100), of(1, 1, 200), of(1, 1, 10)]
    assert names(may_go(held, RetentionPolicy(2), new="1.1.10")) == []
    assert names(may_go(held, RetentionPolicy(1), new="1.1.10")) == ["1.1.100"]


def test_each_run_keeps_its_first_copy_of_every_n_steps_unless_rolled_back() -> None:
    held = [of(1, 1, 100), of(1, 1, 150), of(2, 1, 120), of(2, 1, 150), of(2, 1, 300)]
    assert names(may_go(held, RetentionPolicy(1, every=100))) == ["1.1.150", "2.1.150"]
    gone = replace(held[0], age=held[0].age._replace(is_rolled_back=True))
    assert names(may_go([gone, held[1], held[4]], RetentionPolicy(1, every=100))) == ["1.1.100"]


@given(copies, policies)
def test_a_copy_that_stays_once_stays_again(given_copies: list[RetainedItem], policy: RetentionPolicy) -> None:
    gone = may_go(given_copies, policy)
    assert may_go([item for item in given_copies if item not in gone], policy) == ()
    # and so it does when only some of what may go went: the disk had room again
    assert set(may_go([item for item in given_copies if item not in gone[: len(gone) // 2]], policy)) == set(gone[len(gone) // 2 :])


@given(copies, policies)
def test_keeping_more_names_fewer_and_the_order_given_does_not_matter(given_copies: list[RetainedItem], policy: RetentionPolicy) -> None:
    gone = may_go(given_copies, policy)
    assert may_go(reversed(given_copies), policy) == gone
    assert set(may_go(given_copies, replace(policy, newest=policy.newest + 1))) <= set(gone)
    assert set(gone) <= set(may_go(given_copies, replace(policy, every=None)))
