"""What all events have in common. events.py and training_events.py have the events."""

from __future__ import annotations

from supervisor.core.values import Struct


class JobEvent(Struct, frozen=True):
    """What every event has."""

    t: float  # when it happened


class AttemptEvent(JobEvent, frozen=True):
    """What every event of one attempt has."""

    attempt: int  # in which attempt: of another than the state's it is void
