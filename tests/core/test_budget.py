"""The budget of a family of causes: what it counts, when it is spent, and how long a restart waits."""

from __future__ import annotations

import pytest

from supervisor.core import events
from supervisor.core.budget import backoff_s, balance, equal, past_checkpoint, past_step, restarts_left
from supervisor.core.failure.planning import KEPT_FAILURES, KEPT_FINGERPRINTS, remembered
from supervisor.core.machine import decide, initial
from supervisor.core.model import Cause, CheckpointRef, Evidence, Failure, Policy
from supervisor.core.nodes import joint_decision
from supervisor.core.policy_settings import Restart
from supervisor.core.state import Attempt, NodeReport, SavedSteps
from supervisor.core.values import replace

T = 10_000.0


def failure(cause: Cause = Cause.KILLED_UNKNOWN, **changes: object) -> Failure:
    return replace(Failure(1, T - 60, cause, f"{cause}:print", 100, before_first_step=False, charged=True), **changes)  # type: ignore[arg-type]


def test_a_failure_that_was_not_charged_does_not_count() -> None:
    assert balance((failure(), failure(charged=False)), Cause.KILLED_UNKNOWN, T, Policy(restart=Restart(intensity=3))).left == 1


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
    budget_balance = balance(before, cause, T, Policy(period_s=3600, recurring_stop=5, restart=Restart(intensity=3)))
    assert bool(budget_balance.refusal) == (left is None)
    assert budget_balance.left == (left or 0) or budget_balance.refusal
    assert budget_balance.charged == (cause is not Cause.RENDEZVOUS)


@pytest.mark.parametrize(("cause", "charged", "restarts"), [(Cause.KILLED_UNKNOWN, True, 3), (Cause.RENDEZVOUS, False, 4)])
def test_the_balance_is_the_number_of_restarts_left(cause: Cause, charged: bool, restarts: int) -> None:  # noqa: FBT001 -- a row
    budgets = [
        balance((failure(cause, charged=charged),) * n, cause, T, Policy(recurring_stop=5, restart=Restart(intensity=3)))
        for n in range(restarts + 1)
    ]
    assert [budget.left for budget in budgets[:-1]] == list(reversed(range(restarts)))
    assert [bool(budget.refusal) for budget in budgets] == [False] * restarts + [True]


def test_the_first_restart_is_immediate_and_later_ones_spread_under_a_doubling_ceiling() -> None:
    policy = Policy(backoff_base_s=1.0, backoff_cap_s=5.0)
    assert [backoff_s(used, 1.0, policy) for used in range(5)] == [0.0, 1.0, 2.0, 4.0, 5.0]
    assert backoff_s(4, 0.5, policy) == 2.5


def test_the_users_caps_count_charged_failures_and_nothing_else() -> None:
    assert restarts_left((), T, Policy(), charged=10_000) == 3
    assert restarts_left((), T, Policy(restart=Restart(max_attempts=4)), charged=2) == 1
    assert restarts_left((), T, Policy(max_restarts=2, restart=Restart(max_attempts=50)), charged=2) == 0
    assert restarts_left((failure(),), T, Policy(restart=Restart(max_attempts=50)), charged=1) == 2


def test_steps_are_progress_only_where_no_checkpoint_is_and_are_past_a_place_in_any_case() -> None:
    before = (failure(step=100), failure(step=None), failure(step=300))
    assert [f.progressed_since for f in past_step(before, 200, 190, is_progress=True)] == [True, True, False]
    passed = past_step(before, 200, 190, is_progress=False)
    assert [(f.progressed_since, f.passed_since) for f in passed] == [(False, True), (False, True), (False, False)]
    assert past_step(passed, 201, 191, is_progress=False) is passed


def test_a_checkpoint_clears_the_failures_of_earlier_attempts_and_is_past_those_that_it_is_beyond() -> None:
    before = (failure(attempt=1, step=100), failure(attempt=2, step=300), failure(attempt=3, step=250))
    after = past_checkpoint(before, 200, before_attempt=3)
    assert [(f.progressed_since, f.passed_since) for f in after] == [(True, True), (True, False), (False, False)]
    assert past_checkpoint(after, 200, before_attempt=3) is after


def test_equal_failures_count_however_far_apart_where_steps_show_that_none_got_further() -> None:
    old = T - 40 * 86_400
    assert len(equal((failure(t=old), failure(t=old, step=None), failure(t=T - 9, step=None)), "killed_unknown:print", T)) == 2
    others = (failure(progressed_since=True), failure(charged=False), failure(fingerprint="another"))
    assert equal(others, "killed_unknown:print", T) == ()


def test_the_memory_of_ten_thousand_failures_is_bounded() -> None:
    state = initial()
    for number in range(10_000):
        state = remembered(state, failure(attempt=number, fingerprint=f"kind {number % 300}"))
    assert (state.run.failed, state.run.charged) == (10_000, 10_000)
    assert (len(state.run.failures), len(state.run.recurrences)) == (KEPT_FAILURES, KEPT_FINGERPRINTS)


def test_the_node_that_decides_counts_what_another_node_saved_as_progress() -> None:
    state, _ = decide(initial(), events.SupervisorStarted(0.0, "run", Policy(nodes=2, checkpoints_declared=True)))
    attempt = Attempt(5, members=("a/1", "b/1"), me="a/1", ended=True, evidence=(Evidence("exit", "signal", "9", 0),))
    failures = tuple(failure(attempt=n, t=T - 10, step=90 + n, fingerprint=f"kind {n}") for n in (1, 2, 3))
    checkpoint_ref = CheckpointRef("step-90.pt", 90, "structure")
    state = replace(state, run=replace(state.run, failures=failures, saved_high_water=90, newest=checkpoint_ref), attempt=attempt)

    def decided(saved: int) -> str:
        other = NodeReport("b/1", Attempt(5, ended=True, evidence=(), saved_steps=SavedSteps(saved, saved)))
        reports = (NodeReport("a/1", attempt), other)
        return joint_decision.decided(state, events.ReportsGathered(T, 5, reports, kind="failure", node="a/1")).plan.kind.value

    assert (decided(90), decided(200)) == ("stop", "restart")


def test_a_checkpoint_of_another_training_is_no_progress_of_this_run() -> None:
    state, _ = decide(initial(), events.SupervisorStarted(0.0, "run", Policy(checkpoints_learned=True)))
    state = replace(state, run=replace(state.run, saved_high_water=40))
    stray = CheckpointRef("step-5000.pt", 5000, "structure")

    def reached(*, is_foreign: bool) -> int:
        return decide(state, events.CheckpointSelected(1.0, 0, stray, 1, is_foreign=is_foreign))[0].run.saved_high_water

    assert (reached(is_foreign=True), reached(is_foreign=False)) == (40, 5000)
