"""What an alert contains.

The fields are an allow list, and their types keep it one: no field can hold a command line, a log line, a path or a host name, because a
webhook's receiver (a chat room, a vendor) is not entitled to them. `command` names where a person finds the rest, on the machine itself.
`encode` replaces odd characters and cuts long names.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import assert_never

from supervisor.core.model import Cause

#: The payload's version: it grows when a field changes its meaning or goes, not when one is added.
VERSION = 1

#: Longer names are cut: a receiver's limit must not turn an alert into a dead letter.
NAME_LIMIT = 120
# What a job's name may show as. A slash could be a path, so only the last part of a name is sent.
_ODD = re.compile(r"[^A-Za-z0-9._@:+=-]+")


class AlertEvent(StrEnum):
    """What happened: to an incident, or (from RECURRING_FAILURE on, the core's `OutgoingAlert.kind`) beside it."""

    OPENED = "opened"
    RESOLVED = "resolved"
    GIVEN_UP = "given_up"
    RECURRING_FAILURE = "recurring_failure"
    GPU_QUARANTINED = "gpu_quarantined"
    MEMORY_HELD = "memory_held"
    BATCH_CHANGED = "batch_changed"
    CHANGE_IGNORED = "change_ignored"
    STARTED_FROM_SCRATCH = "started_from_scratch"
    MIRROR_FAILING = "mirror_failing"
    MIRROR_RECOVERED = "mirror_recovered"
    DISK_FILLING = "disk_filling"
    NOT_FINITE = "not_finite"
    NO_COPY = "no_copy"
    NODE_HEALTH = "node_health"

    @property
    def state(self) -> str:
        """`firing` while a person may have to act, `resolved` when none has to any more."""
        match self:
            case AlertEvent.OPENED | AlertEvent.GIVEN_UP | AlertEvent.STARTED_FROM_SCRATCH:
                return "firing"
            case AlertEvent.RECURRING_FAILURE | AlertEvent.GPU_QUARANTINED | AlertEvent.MEMORY_HELD | AlertEvent.CHANGE_IGNORED:
                return "firing"
            case AlertEvent.MIRROR_FAILING | AlertEvent.DISK_FILLING | AlertEvent.NO_COPY:
                return "firing"
            case AlertEvent.NOT_FINITE | AlertEvent.NODE_HEALTH:
                return "firing"
            case AlertEvent.RESOLVED | AlertEvent.BATCH_CHANGED | AlertEvent.MIRROR_RECOVERED:
                return "resolved"
            case _:
                assert_never(self)


class AlertSeverity(StrEnum):
    """How soon a person should look (PagerDuty's words)."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


#: How soon, by what happened.
SEVERITIES = {
    AlertEvent.OPENED: AlertSeverity.WARNING,
    AlertEvent.RESOLVED: AlertSeverity.INFO,
    AlertEvent.GIVEN_UP: AlertSeverity.CRITICAL,
    AlertEvent.RECURRING_FAILURE: AlertSeverity.WARNING,
    AlertEvent.GPU_QUARANTINED: AlertSeverity.WARNING,
    AlertEvent.MEMORY_HELD: AlertSeverity.WARNING,
    AlertEvent.BATCH_CHANGED: AlertSeverity.INFO,
    AlertEvent.CHANGE_IGNORED: AlertSeverity.WARNING,
    AlertEvent.STARTED_FROM_SCRATCH: AlertSeverity.CRITICAL,
    AlertEvent.MIRROR_FAILING: AlertSeverity.WARNING,
    AlertEvent.MIRROR_RECOVERED: AlertSeverity.INFO,
    AlertEvent.DISK_FILLING: AlertSeverity.WARNING,
    AlertEvent.NOT_FINITE: AlertSeverity.WARNING,
    AlertEvent.NO_COPY: AlertSeverity.WARNING,
    AlertEvent.NODE_HEALTH: AlertSeverity.WARNING,
}


class AlertAction(StrEnum):
    """What supervise did or is about to do: a closed list, so that no reason text can carry a path."""

    RESTART = "restart"
    STOP = "stop"
    RESUMED = "resumed"
    STARTED_FROM_SCRATCH = "started_from_scratch"
    RESUME_NOT_CONFIRMED = "resume_not_confirmed"


@dataclass(frozen=True, slots=True)
class OutgoingAlert:
    """One alert to send. `ts` is Unix seconds; `rank` and `step` are None where they are not known; `incident` is 0 where it is of none.

    about: what tells two alerts of one kind and attempt apart (two GPUs that are put out of use). It is never sent.
    """

    run_id: str
    job: str
    event: AlertEvent
    severity: AlertSeverity
    incident: int
    attempt: int
    ts: float
    action: AlertAction
    cause: Cause = Cause.NONE
    rank: int | None = None
    step: int | None = None
    about: str = ""

    @property
    def event_id(self) -> str:
        """32 hex digits that are equal for the same news of the same run: a supervisor that replays its journal names it alike."""
        identity = f"{self.run_id}\0{self.job}\0{self.incident}\0{self.attempt}\0{self.event}" + (f"\0{self.about}" if self.about else "")
        return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    @property
    def command(self) -> str:
        """The command that shows the rest, on the machine; without the job's name if the alert shows another form of it."""
        shown = f"supervise why {self.incident}" if self.incident else "supervise status"
        return shown + (f" --job {self.job}" if _plain(self.job) == self.job else "")


def _plain(name: str) -> str:
    return _ODD.sub("_", name.rstrip("/").rsplit("/", 1)[-1])[:NAME_LIMIT] or "_"


def payload(alert: OutgoingAlert) -> dict[str, str | int | None]:
    """Give the fields that leave the machine, in the order in which they are documented (docs/alerts.md)."""
    return {
        "version": VERSION,
        "event_id": alert.event_id,
        "run_id": _plain(alert.run_id),
        "job": _plain(alert.job),
        "event": alert.event.value,
        "severity": alert.severity.value,
        "state": alert.event.state,
        "cause": alert.cause.value,
        "rank": alert.rank,
        "step": alert.step,
        "attempt": alert.attempt,
        "incident": alert.incident,
        "action": alert.action.value,
        "command": alert.command,
        "ts": datetime.fromtimestamp(alert.ts, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }


def encode(alert: OutgoingAlert) -> bytes:
    """Give the JSON body: ASCII, under 1 KiB, the same bytes at every try."""
    return json.dumps(payload(alert), separators=(",", ":")).encode("ascii")
