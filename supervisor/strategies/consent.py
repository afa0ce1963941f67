"""When a plan may change the job: its knobs are enabled, the cause is sure, and more than log text proves it.

A program may print anything: a document about "CUDA out of memory" in its data, a warning of a library. So a plan that changes the
batch, the allocator, the GPUs or the checkpoint needs a verdict of at least the confidence floor of its cause. It also needs one piece of
evidence for that cause that was not read from free text: the exception in a rank's own error file or final traceback, the signal it died
of, a record of the kernel or the cgroup, a digest that failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify import exception_table, exits
from supervisor.classify.exceptions import UNCAUGHT
from supervisor.core.causes import CAUSE_TABLE

if TYPE_CHECKING:
    from supervisor.core.model import Cause, Evidence, FailureVerdict, Plan
    from supervisor.strategies.situation import Situation

#: The least confidence of a verdict that ends a run at once. A verdict by lists of texts alone has less.
STOP_FLOOR = 0.8


def proves(fact: Evidence, cause: Cause) -> bool:
    """Whether a piece of evidence supports the cause and is not free text."""
    if fact.free_text:
        return False
    if fact.claim is not None:
        return fact.claim.cause is cause
    if (fact.source, fact.name) in UNCAUGHT:
        row = exception_table.BY_CLASS.get(exits.exception_type(fact.text))
    elif fact.source == "exit" and fact.name == "signal" and fact.text.isdigit():
        row = exits.BY_SIGNAL.get(int(fact.text))
    else:
        row = exits.BY_FACT.get((fact.source, fact.name))
    return row is not None and row.cause is cause


def is_sure(cause: Cause, confidence: float) -> bool:
    """Whether a verdict of this confidence, or a claim of this weight, may change the job."""
    return confidence >= CAUSE_TABLE[cause].confidence_floor


def may_stop(verdict: FailureVerdict) -> bool:
    """Whether a verdict may end the run at once, as a stop changes a job too: it is sure, and is not of a log's words alone.

    A program prints messages of another job's scheduler, too. Where a scheduler does end the job, supervise itself gets the signal.
    """
    words = any(fact.free_text and fact.claim is not None and fact.claim.cause is verdict.cause for fact in verdict.because)
    return any(proves(fact, verdict.cause) for fact in verdict.because) or (verdict.confidence >= STOP_FLOOR and not words)


def objection(situation: Situation) -> str:
    """Return why no plan may change the job in this situation, "" if one may."""
    verdict = situation.verdict
    if not is_sure(verdict.cause, verdict.confidence):
        floor = CAUSE_TABLE[verdict.cause].confidence_floor
        return f"confidence {verdict.confidence:.2f} is below the {floor:.2f} required to change the job"
    if not any(proves(fact, verdict.cause) for fact in verdict.because):
        return "the cause was only read in log text, which is not enough to change the job"
    return ""


def unavailable(situation: Situation, plan: Plan) -> str:
    """Return which of the plan's knobs are not enabled, "" for none. Variables of the environment (`env:NAME`) need no knob."""
    missing = [c.knob for c in plan.changes if not c.knob.startswith("env:") and situation.enabled(c.knob) is None]
    return f"{', '.join(missing)} not enabled" if missing else ""
