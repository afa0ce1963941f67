"""The line that announces a restart: where the run failed and of what, and with what the next attempt begins. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.model import Cause
from supervisor.job.local_time import clock_text
from supervisor.report import wording
from supervisor.report.text import clean
from supervisor.strategies import is_explained
from supervisor.strategies.situation import changes

if TYPE_CHECKING:
    from supervisor.core.actions import ReportDecision
    from supervisor.core.model import FailureVerdict, Plan

LONG_WAIT_S: Final = 10.0  # of a wait that lasts so long, the line says until when it is


def restart_line(decision: ReportDecision, now: float, *, is_same_wait: bool) -> str:
    """Return the line without its end. now: Unix seconds. is_same_wait: the attempt before only waited, for the same."""
    failure = _failure_text(decision, is_same_wait=is_same_wait)
    return f"incident {decision.incident}{failure}. {_restart_text(decision.plan, decision.attempt, now)}"


def _failure_text(decision: ReportDecision, *, is_same_wait: bool) -> str:
    """Return where a run failed and of what, as it follows the incident's number. is_same_wait: the attempt before only waited."""
    verdict = decision.verdict
    summary = _summary(verdict)
    if is_same_wait:
        return f": it waits on, because {summary}"
    at = ", last step" if verdict.cause is Cause.NODE_LOST else " at step"
    is_named = decision.step is None or f"step {decision.step}" in summary
    position = "" if is_named else f"{at} {decision.step}" + (" or later" if decision.at_least else "")
    node = "" if not verdict.node or verdict.node in summary else f" on {verdict.node}"
    return f"{position}: {summary}{node}"


def _summary(verdict: FailureVerdict) -> str:
    """Return what failed: of memory the sizes in place of the library's four sentences, of all else the sentence that tells."""
    if CAUSE_TABLE[verdict.cause].names == "sizes" and verdict.rank is not None:
        sentence = wording.what_text(verdict)
        return f"rank {verdict.rank}: {sentence[:1].lower()}{sentence[1:]}"
    return wording.essence(clean(verdict.summary)).rstrip(".")


def _restart_text(plan: Plan, attempt: int, now: float) -> str:
    """Return when and with what the next attempt begins, and why so where the step does not speak for itself."""
    wait = f" in {plan.delay_s:.1f} s" if plan.delay_s else ""
    if plan.delay_s >= LONG_WAIT_S:
        wait += f", at {clock_text(now + plan.delay_s)}, and no rank runs until then"
    changed = f" with {wording.changes(plan)}" if plan.changes or plan.nproc is not None else "" if changes(plan) else ", nothing changed"
    why = f": {clean(plan.reason)}" if is_explained(plan.strategy) else ""
    return f"Restarting as attempt {attempt + 1}{wait}{changed}{why}"
