"""Whether a change of stage stands in the table of the events (core/machine.py), from which docs/reference/stages.md is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.machine import EVENTS

if TYPE_CHECKING:
    from supervisor.core.events import Event
    from supervisor.core.state import Stage


def is_declared(before: Stage, event: Event, after: Stage) -> bool:
    """Return whether the table lets the event lead from one stage to the other."""
    return after is before or after in EVENTS[type(event)].leads_to.get(before, ())
