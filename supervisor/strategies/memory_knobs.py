"""Memory for time: activation checkpointing, then keeping state in main memory, where the user declared how they are turned on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Change, Plan, PlanKind
from supervisor.knobs.syntax import ON

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

NAME = "memory_knobs"
#: In the order of what they cost.
KNOBS = {"activation_checkpointing": "computes activations twice", "cpu_offload": "moves state over PCIe in each step"}


def propose(situation: Situation) -> Plan | None:
    """Turn on the first of them that is armed and not on yet."""
    for name, cost in KNOBS.items():
        knob = situation.armed(name)
        if knob is not None and knob.value != ON:
            return Plan(
                kind=PlanKind.RESTART,
                reason=f"{name.replace('_', ' ')} on ({knob.how}): the same batch in less memory; it {cost}",
                next_rung="",
                strategy=NAME,
                changes=(Change(name, knob.value or "off", ON, knob.how),),
            )
    return None
