"""Sums up one attempt for its last line in the log. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from supervisor.core import events

if TYPE_CHECKING:
    from supervisor.core.events import Event


@dataclass(slots=True)
class AttemptSummary:
    """The facts for the line that sums up an attempt. `first_dead` is the rank that failed first; None: unknown."""

    attempt: int = 0
    reason: str = ""
    resume_from: str | None = None
    resume_step: int | None = None
    ranks: int = 0
    world_size: int = 0
    began_t: float | None = None
    step: int | None = None
    steps_seen: int | None = None
    phase: str = "unknown"
    first_dead: int | None = None
    code: int | None = None
    signal: int | None = None
    failed_t: float | None = None  # when a rank failed first, or the attempt ended otherwise

    def took(self, event: Event) -> None:
        """Note what an event adds."""
        if isinstance(event, events.AttemptStarted):
            self.attempt, self.ranks, self.world_size, self.began_t = event.attempt, len(event.ranks), event.world_size, event.t
        elif isinstance(event, events.RanksFound):
            self.ranks, self.world_size = len(event.ranks), event.world_size
        elif isinstance(event, events.ProgressObserved):
            self.step, self.steps_seen, self.phase = event.step, event.steps_seen, event.phase.value
        elif isinstance(event, events.AttemptEnded):
            self.failed_t = self.failed_t or event.t
        elif isinstance(event, events.RankExited):
            rank_exit = event.exit
            if rank_exit.failed and self.first_dead is None:
                self.failed_t = self.failed_t or event.t
                self.first_dead, self.code, self.signal = rank_exit.rank, rank_exit.code, rank_exit.signal

    def fields(self, outcome: str, t: float) -> dict[str, object]:
        """Return the fields of the line; an attempt whose ranks never were there ran for 0 s."""
        fields = asdict(self)
        del fields["began_t"], fields["failed_t"]
        return fields | {"outcome": outcome, "ran_s": 0.0 if self.began_t is None else round(t - self.began_t, 3)}


def logged_fields(event: Event) -> dict[str, Any]:
    """Return what the log has of an event: all of it, but for what the lines of an incident and the journal say better."""
    if isinstance(event, events.DecisionMade):
        decision = event.decision
        fields: dict[str, Any] = {"attempt": event.attempt, "kind": event.kind, "elsewhere": event.elsewhere}
        if decision is not None:
            verdict = decision.verdict
            fields |= {"cause": verdict.cause, "node": verdict.node, "rank": verdict.rank, "step": decision.step}
            fields |= {"by": decision.by, "reason": decision.plan.reason}
        return fields
    return {name: value for name, value in msgspec.to_builtins(event).items() if name not in {"t", "past"}}
