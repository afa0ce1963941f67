"""Decides whether a run may fail once more: `restart.intensity` failures per period and family of causes, cleared by progress.

The rule is that of Erlang/OTP's supervisor. Each family has its own budget, so that network failures do not use up the restarts for a
failure of the program. Infrastructure failures, and failures after which the plan changed the job, are counted but use up no budget.
Infrastructure failures have a limit of their own (`recurring_stop`), because the run would otherwise wait for the infrastructure for ever.
Their period is a day: ten collectives that time out after half an hour each are as hopeless as ten within one hour. A link that fails
twice a week is not, also in a job whose progress nobody sees (no absolute step, no verified checkpoint).

Progress is what a restart would not lose: a verified checkpoint beyond any before in this run. Where none was ever verified it is a step
beyond any before. It clears all budgets, so that a job may fail every night for a year if it comes further between.

The step `recurring` (strategies/guards.py) asks for infrastructure and for equal failures, `restart_within_budget`
(strategies/repetition.py) for all else.
"""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING

from supervisor.core.causes import CAUSE_TABLE, Family
from supervisor.core.model import Cause
from supervisor.core.units import span_text
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from supervisor.core.model import Failure, Policy

INFRASTRUCTURE_PERIOD_S = 86_400.0


def family(cause: Cause) -> Family:
    """Return the family whose budget this cause is charged to."""
    return CAUSE_TABLE[cause].family


def recent(failures: tuple[Failure, ...], cause: Cause, t: float, policy: Policy) -> tuple[Failure, ...]:
    """Return the failures of the cause's family within its period and since the last progress, charged or not."""
    own_family = family(cause)
    period_s = INFRASTRUCTURE_PERIOD_S if own_family is Family.INFRASTRUCTURE else policy.period_s
    return tuple(f for f in failures if not f.progressed_since and family(f.cause) is own_family and t - f.t <= period_s)


def equal(failures: tuple[Failure, ...], fingerprint: str, t: float) -> tuple[Failure, ...]:
    """Return the charged failures of this fingerprint without progress since.

    Where steps show that none was made, they count however far apart they are: the run does not get past that place. Where nobody sees
    steps, only those of a day count.
    """
    alike = (f for f in failures if f.fingerprint == fingerprint and f.charged and not f.progressed_since)
    return tuple(f for f in alike if f.step is not None or f.before_first_step or t - f.t <= INFRASTRUCTURE_PERIOD_S)


def past_step(failures: tuple[Failure, ...], step: int, passed: int, *, is_progress: bool) -> tuple[Failure, ...]:
    """Return the failures once the run has reached `step`, a new highest one, and themselves where that changes nothing.

    A failure before `step` counts no longer if steps are this run's progress. One before `passed` is past its place in any case.
    """
    marked = [
        f
        if f.progressed_since and f.passed_since
        else _marked(f, progressed=is_progress and (f.step is None or f.step < step), passed=f.step is None or f.step < passed)
        for f in failures
    ]
    return _replaced(failures, marked)


def past_checkpoint(failures: tuple[Failure, ...], step: int, before_attempt: int) -> tuple[Failure, ...]:
    """Return the failures once a checkpoint of `step` is verified, beyond any before: it clears those of attempts before the given one.

    The checkpoint is past the place of those that failed at its step at most.
    """
    marked = [
        f
        if f.attempt >= before_attempt or (f.progressed_since and f.passed_since)
        else _marked(f, progressed=True, passed=f.step is None or f.step <= step)
        for f in failures
    ]
    return _replaced(failures, marked)


def _marked(failure: Failure, *, progressed: bool, passed: bool) -> Failure:
    """Return the failure with what the run has got beyond since, and itself where that changes nothing: the usual case, at every step."""
    progressed, passed = failure.progressed_since or progressed, failure.passed_since or passed
    if (progressed, passed) == (failure.progressed_since, failure.passed_since):
        return failure
    return replace(failure, progressed_since=progressed, passed_since=passed)


def _replaced(failures: tuple[Failure, ...], marked: list[Failure]) -> tuple[Failure, ...]:
    """Return the marked failures, and the same tuple as before where none differs."""
    return failures if all(map(is_, marked, failures)) else tuple(marked)


class BudgetBalance(Struct, frozen=True):
    """The answer of a family's budget after one more failure.

    refusal: why no further restart is allowed, "" if one is. left: how many restarts may follow this one. charged: whether this failure
    counts against `intensity`.
    """

    refusal: str
    left: int
    charged: bool


def balance(failures: tuple[Failure, ...], cause: Cause, t: float, policy: Policy) -> BudgetBalance:
    """Charge a failure of `cause` at time `t` to the budget; `failures` are those before it.

    The infrastructure's `recurring_stop`-th failure stops the run. A failure that a change of the job answered does not count.
    """
    earlier = recent(failures, cause, t, policy)
    infrastructure = family(cause) == "infrastructure"
    if infrastructure:
        used, allowed = sum(not f.changed for f in earlier), policy.recurring_stop - 1
        reason = f"the infrastructure failed {used + 1} times within a day without progress"
    else:
        used, allowed = sum(f.charged for f in earlier), policy.restart.intensity
        reason = f"failed {used + 1} times within {span_text(policy.period_s)} without progress"
    return BudgetBalance(reason if used >= allowed else "", max(allowed - used - 1, 0), charged=not infrastructure)


def restarts_left(failures: tuple[Failure, ...], t: float, policy: Policy, charged: int) -> int:
    """Return how many restarts may follow at time `t`, each without progress, if it now fails as it did last.

    charged: how many failures of the run were charged, with progress since or without: the user's caps count them.
    """
    budget_balance = balance(failures, failures[-1].cause if failures else Cause.UNKNOWN, t, policy)
    allowed = 0 if budget_balance.refusal else budget_balance.left + 1
    cap = restarts_cap(policy)
    return allowed if cap is None else max(0, min(allowed, cap - charged))


def restarts_cap(policy: Policy) -> int | None:
    """Return after how many charged failures the user's own caps allow no further restart; None: there is no cap."""
    caps = [policy.max_restarts] if policy.max_restarts is not None else []
    caps += [policy.restart.max_attempts - 1] if policy.restart.max_attempts else []
    return min(caps, default=None)


def backoff_s(used: int, jitter: float, policy: Policy) -> float:
    """Return the delay before the next restart: full jitter under a ceiling that doubles from the base.

    used: earlier failures that count. 0: restart at once.

    Full jitter: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """
    if used == 0:
        return 0.0
    return float(jitter * min(policy.backoff_cap_s, policy.backoff_base_s * 2 ** (used - 1)))
