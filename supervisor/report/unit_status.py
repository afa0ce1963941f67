"""The messages about a run to systemd: the unit's status line, and when its start is over. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core import events
from supervisor.core.model import PlanKind
from supervisor.observe.ranks.progress_sampler import START_CEILING_S
from supervisor.report import wording
from supervisor.report.text import clean, cut

if TYPE_CHECKING:
    from supervisor.core.actions import ReportDecision
    from supervisor.core.events import Event
    from supervisor.core.state import Attempt

#: The longest sentence in the last status line; the command follows it.
MOST_SUMMARY = 100


def status_line(event: Event) -> str:
    """Return the unit's status line after an event, "" where it stays as it is."""
    match event:
        case events.AttemptStarted():
            return f"attempt {event.attempt} runs on {len(event.ranks)} rank(s) here"
        case events.ProgressObserved():
            steps = f"step {event.step}" if event.step is not None else f"{event.steps_seen} steps" if event.steps_seen > 0 else ""
            return f"attempt {event.attempt}: {event.phase}, {steps}" if steps else ""
        case events.StartCeilingPassed():
            return unseen_line(event.attempt)
        case events.AttemptEnded():
            return f"attempt {event.attempt} {event.outcome}"
        case _:
            return ""


def unseen_line(attempt: int) -> str:
    """Return the status line of an attempt whose steps cannot be seen."""
    return f"attempt {attempt} runs; its steps cannot be seen"


def is_overdue(attempt: Attempt, now: float) -> bool:
    """Whether ranks that run have shown no step for this long that none is waited for."""
    return attempt.started_t is not None and not attempt.ended and now - attempt.started_t >= START_CEILING_S


def end_line(job: str, exit_code: int, decision: ReportDecision | None) -> str:
    """Return the unit's last status line: done, stopped or failed, the exit code, and what failed."""
    if exit_code == 0 or decision is None or decision.plan.kind is not PlanKind.STOP:
        return f"{'done' if exit_code == 0 else 'stopped'}, exit code {exit_code}"
    verdict = decision.verdict
    look = f"supervise why {decision.incident} --job {job}"
    return f"failed, exit code {exit_code}: {cut(clean(wording.what_text(verdict)), MOST_SUMMARY)}; {look}"
