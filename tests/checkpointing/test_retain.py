"""Which copies may go: by examples, and by laws that hold for every set of copies and every policy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.model import Verdict
from checkpointing.retain import Held, Policy, may_go

copies = st.lists(
    st.builds(
        Held,
        name=st.text("abcdefghij", min_size=1, max_size=3),
        step=st.one_of(st.none(), st.integers(0, 50)),
        age=st.integers(0, 20),
        verdict=st.sampled_from(Verdict),
        in_use=st.booleans(),
        uploading=st.booleans(),
    ),
    max_size=15,
    unique_by=lambda one: one.name,
)
policies = st.builds(Policy, newest=st.integers(0, 5), every=st.one_of(st.none(), st.integers(0, 12)))


def held(step: int | None, verdict: Verdict = Verdict.VERIFIED, **more: bool) -> Held:
    return Held(f"{step}", step, step or 0, verdict, **more)


@pytest.mark.parametrize(
    ("steps", "policy", "go"),
    [
        ((1, 2, 3), Policy(2), (1,)),
        ((1, 2, 3), Policy(0), (1, 2)),
        ((3, 1, 2), Policy(1), (1, 2)),
        ((10, 20, 30, 40, 50), Policy(1, every=20), (30,)),  # the first of each twenty steps: 10, 20, 40
        ((5,), Policy(1), ()),
        ((), Policy(1), ()),
    ],
    ids=str,
)
def test_the_newest_and_every_kth_stay(steps: tuple[int, ...], policy: Policy, go: tuple[int, ...]) -> None:
    assert tuple(one.step for one in may_go(map(held, steps), policy)) == go


def test_what_is_damaged_goes_first_but_only_beside_a_verified_one() -> None:
    bad = held(9, Verdict.BAD)
    assert may_go([bad], Policy(1)) == ()
    assert may_go([bad, held(1), held(2)], Policy(1)) == (bad, held(1))


def test_of_unknown_verdict_nothing_goes() -> None:
    unknown = [held(step, verdict) for step, verdict in enumerate(Verdict) if verdict not in (Verdict.VERIFIED, Verdict.BAD)]
    assert may_go([*unknown, held(99)], Policy(1)) == ()


@given(copies, policies)
def test_a_verified_one_always_stays_and_what_is_needed_is_never_named(given_copies: list[Held], policy: Policy) -> None:
    gone = may_go(given_copies, policy)
    assert len(set(gone)) == len(gone)
    assert all(one in given_copies and one.verdict in (Verdict.VERIFIED, Verdict.BAD) for one in gone)
    assert not any(one.in_use or one.uploading for one in gone)
    left = [one for one in given_copies if one not in gone]
    if any(one.verdict is Verdict.VERIFIED for one in given_copies):
        assert any(one.verdict is Verdict.VERIFIED for one in left)
    else:
        assert not gone
    steps = [one.step for one in given_copies if one.verdict is Verdict.VERIFIED and one.step is not None]
    assert not steps or max(steps) in [one.step for one in left if one.verdict is Verdict.VERIFIED]


@given(copies, policies)
def test_what_stays_once_stays(given_copies: list[Held], policy: Policy) -> None:
    gone = may_go(given_copies, policy)
    assert may_go([one for one in given_copies if one not in gone], policy) == ()
    # and so it does when only some of what may go went: the disk had room again
    assert set(may_go([one for one in given_copies if one not in gone[: len(gone) // 2]], policy)) == set(gone[len(gone) // 2 :])


@given(copies, policies)
def test_keeping_more_names_fewer_and_the_order_given_does_not_matter(given_copies: list[Held], policy: Policy) -> None:
    gone = may_go(given_copies, policy)
    assert may_go(reversed(given_copies), policy) == gone
    assert set(may_go(given_copies, replace(policy, newest=policy.newest + 1))) <= set(gone)
    assert set(gone) <= set(may_go(given_copies, replace(policy, every=None)))
