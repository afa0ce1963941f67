"""What all events have in common. events.py and training_events.py have the events."""

from __future__ import annotations

from supervisor.core.values import Struct


class JobEvent(Struct, frozen=True):
    """What every event has."""

    t: float  # when it happened (core/model.py)


class AttemptEvent(JobEvent, frozen=True):
    """What every event of one attempt has."""

    attempt: int  # the fence: of another attempt than the state's it is void
