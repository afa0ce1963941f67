"""The common fields of all events. events.py and training_events.py have the events."""

from __future__ import annotations

from supervisor.core.values import Struct


class JobEvent(Struct, frozen=True):
    """The field of every event."""

    t: float  # when it happened


class AttemptEvent(JobEvent, frozen=True):
    """The fields of every event of one attempt."""

    attempt: int  # in which attempt: of another than the state's it is void
