"""Counts what happened in a run, by the records of its journal. Pure.

A count continues where a supervisor took the run over, because the journal does. A new run begins at 0.
"""

from __future__ import annotations

from typing import Any

from supervisor.core.model import Cause, PlanKind
from supervisor.core.values import Struct, field, replace
from supervisor.journal.records import MIRRORED, START_TIMES, EventTaken, Note

_ACTIONS = frozenset(kind.value for kind in PlanKind)
#: Reasons of an attempt after the first without a failure.
NO_FAILURE = ("membership", "takeover")


class RunCounters(Struct, omit_defaults=True):
    """The counts of one run."""

    run_id: str = ""
    restarts: dict[str, int] = field(default_factory=dict)  # by cause; a cause that is not in it: none
    incidents: dict[str, dict[str, int]] = field(default_factory=dict)  # by cause and action, likewise
    recoveries: int = 0
    recovery_s: float = 0.0  # of all recoveries together
    verified: int = 0
    verified_t: float | None = None  # of the newest, Unix seconds; None: not yet
    verified_step: int | None = None
    mirrored_t: float | None = None  # as verified_t
    cause: str = Cause.UNKNOWN.value  # of the newest decision

    def copied(self) -> RunCounters:
        """Return counters that share nothing that changes with these."""
        return replace(self, restarts={**self.restarts}, incidents={cause: {**counts} for cause, counts in self.incidents.items()})

    def take_event(self, taken: EventTaken, t: float) -> None:
        """Take an event and the decision about it."""
        for name, data in taken.actions:
            self._take_action(name, data)
        if taken.event == "CheckpointVerified":
            self.verified, self.verified_t = self.verified + 1, t
            step = (taken.data.get("checkpoint") or {}).get("step")
            self.verified_step = step if isinstance(step, int) else None

    def take_note(self, note: Note, t: float) -> None:
        """Take a fact beside the events."""
        if note.name == MIRRORED:
            self.mirrored_t = t
        elif note.name == START_TIMES:
            self._take_start(note.data)

    def _take_action(self, name: str, data: dict[str, Any]) -> None:
        if name == "ReportDecision":
            cause, action = str((data.get("verdict") or {}).get("cause")), str((data.get("plan") or {}).get("kind"))
            self.cause = cause if _is_cause(cause) else Cause.UNKNOWN.value
            if action in _ACTIONS:
                counts = self.incidents.setdefault(self.cause, {})
                counts[action] = counts.get(action, 0) + 1
        elif name == "BeginAttempt" and data.get("reason") != "start":
            reason = str(data.get("reason"))
            key = reason if reason in NO_FAILURE else self.cause
            self.restarts[key] = self.restarts.get(key, 0) + 1

    def _take_start(self, data: dict[str, Any]) -> None:
        took_s = data.get("total_s")
        if data.get("after") == "failure" and data.get("trained") and isinstance(took_s, int | float):
            self.recoveries, self.recovery_s = self.recoveries + 1, self.recovery_s + took_s


def _is_cause(text: str) -> bool:
    """Whether a cause is called so: a built-in one, or of a signature of the user's."""
    try:
        Cause(text)
    except ValueError:
        return False
    return True
