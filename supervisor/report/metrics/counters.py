"""Counts what happened in a run, from the records of its journal: one pass, each record once. Pure.

A count goes on where a supervisor took the run over, because the journal does. A new run begins at 0.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervisor.core.model import Cause, PlanKind
from supervisor.journal.records import MIRRORED, START_TIMES, EventTaken, Note, Record, RunBegan

if TYPE_CHECKING:
    from supervisor.journal.records import Damage

_CAUSES = frozenset(cause.value for cause in Cause)
_ACTIONS = frozenset(kind.value for kind in PlanKind)
#: What begins an attempt after the first without a failure.
NO_FAILURE = ("membership", "takeover")


@dataclass(slots=True)
class RunCounters:
    """One run. restarts: by cause; incidents: by cause and action; recoveries: how many, in recovery_s seconds together.

    verified_t, mirrored_t: of the newest, Unix seconds, None: not yet.
    """

    run_id: str = ""
    restarts: Counter[str] = field(default_factory=Counter)
    incidents: Counter[tuple[str, str]] = field(default_factory=Counter)
    recoveries: int = 0
    recovery_s: float = 0.0
    verified: int = 0
    verified_t: float | None = None
    verified_step: int | None = None
    mirrored_t: float | None = None
    _cause: str = Cause.UNKNOWN.value  # of the newest decision
    _last_seq: int = 0

    def take(self, record: Record | Damage) -> None:
        """Take the next record of the journal."""
        if not isinstance(record, Record) or record.seq <= self._last_seq:  # a number that was there is a second copy
            return
        self._last_seq, body = record.seq, record.body
        if isinstance(body, RunBegan) and not body.continues:
            RunCounters.__init__(self, body.run_id, _last_seq=record.seq)
        elif isinstance(body, EventTaken):
            for name, data in body.actions:
                self._take_action(name, data)
            if body.event == "CheckpointVerified":
                self.verified, self.verified_t = self.verified + 1, record.t
                step = (body.data.get("checkpoint") or {}).get("step")
                self.verified_step = step if isinstance(step, int) else None
        elif isinstance(body, Note) and body.name == MIRRORED:
            self.mirrored_t = record.t
        elif isinstance(body, Note) and body.name == START_TIMES:
            self._take_start(body.data)

    def _take_action(self, name: str, data: dict[str, Any]) -> None:
        if name == "ReportDecision":
            cause, action = str((data.get("verdict") or {}).get("cause")), str((data.get("plan") or {}).get("kind"))
            self._cause = cause if cause in _CAUSES else Cause.UNKNOWN.value
            if action in _ACTIONS:
                self.incidents[self._cause, action] += 1
        elif name == "BeginAttempt" and data.get("reason") != "start":
            reason = str(data.get("reason"))
            self.restarts[reason if reason in NO_FAILURE else self._cause] += 1

    def _take_start(self, data: dict[str, Any]) -> None:
        took_s = data.get("total_s")
        if data.get("after") == "failure" and data.get("trained") and isinstance(took_s, int | float):
            self.recoveries, self.recovery_s = self.recoveries + 1, self.recovery_s + took_s
