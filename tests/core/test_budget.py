"""The budget of a family of causes: what is counted, when it is spent, and how long a restart waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.budget import backoff_s, balance
from supervisor.core.model import Cause, Failure, Policy

T = 10_000.0


def failure(cause: Cause = Cause.KILLED_UNKNOWN, **changes: object) -> Failure:
    return replace(Failure(1, T - 60, cause, f"{cause}:print", 100, before_first_step=False, charged=True), **changes)  # type: ignore[arg-type]


def test_a_failure_that_was_not_charged_does_not_count() -> None:
    assert balance((failure(), failure(charged=False)), Cause.KILLED_UNKNOWN, T, Policy(intensity=3)).left == 1


@pytest.mark.parametrize(
    ("cause", "before", "left"),
    [
        (Cause.KILLED_UNKNOWN, (), 2),
        (Cause.KILLED_UNKNOWN, (failure(),) * 2, 0),
        (Cause.KILLED_UNKNOWN, (failure(),) * 3, None),
        (Cause.KILLED_UNKNOWN, (failure(progressed_since=True),) * 3, 2),
        (Cause.KILLED_UNKNOWN, (failure(t=T - 3601),) * 3, 2),
        (Cause.KILLED_UNKNOWN, (failure(Cause.USER_CODE),) * 3, 2),
        (Cause.RENDEZVOUS, (failure(Cause.RENDEZVOUS, charged=False),) * 3, 0),
        (Cause.RENDEZVOUS, (failure(Cause.RENDEZVOUS, charged=False),) * 4, None),
        (Cause.RENDEZVOUS, (failure(Cause.GLOO_ERROR, charged=False, t=T - 3601),) * 4, None),
        (Cause.RENDEZVOUS, (failure(Cause.GLOO_ERROR, charged=False, t=T - 86_401),) * 4, 3),
        (Cause.RENDEZVOUS, (failure(Cause.RENDEZVOUS, charged=False, changed=True),) * 4, 3),
        (Cause.RENDEZVOUS, (failure(Cause.RENDEZVOUS, charged=False, progressed_since=True),) * 4, 3),
    ],
)
def test_the_budget_is_spent_at_its_limit_for_each_family(cause: Cause, before: tuple[Failure, ...], left: int | None) -> None:
    found = balance(before, cause, T, Policy(intensity=3, period_s=3600, recurring_stop=5))
    assert bool(found.refusal) == (left is None)
    assert found.left == (left or 0) or found.refusal
    assert found.charged == (cause is not Cause.RENDEZVOUS)


@pytest.mark.parametrize(("cause", "charged", "restarts"), [(Cause.KILLED_UNKNOWN, True, 3), (Cause.RENDEZVOUS, False, 4)])
def test_what_is_left_is_the_number_of_restarts_that_follow(cause: Cause, charged: bool, restarts: int) -> None:  # noqa: FBT001 -- a row
    found = [balance((failure(cause, charged=charged),) * n, cause, T, Policy(intensity=3, recurring_stop=5)) for n in range(restarts + 1)]
    assert [one.left for one in found[:-1]] == list(reversed(range(restarts)))
    assert [bool(one.refusal) for one in found] == [False] * restarts + [True]


def test_the_first_restart_is_immediate_and_later_ones_spread_under_a_doubling_ceiling() -> None:
    policy = Policy(backoff_base_s=1.0, backoff_cap_s=5.0)
    assert [backoff_s(used, 1.0, policy) for used in range(5)] == [0.0, 1.0, 2.0, 4.0, 5.0]
    assert backoff_s(4, 0.5, policy) == 2.5
