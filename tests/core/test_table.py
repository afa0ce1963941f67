"""Each event has one function, of its name, in one module; so has each timer. What is not in the tables answers nothing."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections import Counter

from supervisor import core
from supervisor.core import events, training_events
from supervisor.core.actions import DURABLE, BeginAttempt, GatherNodes, Quarantine
from supervisor.core.event import JobEvent
from supervisor.core.machine import EVENTS, TIMERS

MODULES = [importlib.import_module(info.name) for info in pkgutil.walk_packages(core.__path__, f"{core.__name__}.")]
#: Every function of the core that answers something, with the module in which it stands.
HANDLERS = [
    (name, module.__name__)
    for module in MODULES
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if name.startswith("on_") and function.__module__ == module.__name__
]


def name_of(kind: type) -> str:
    return "on_" + re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def test_every_event_has_one_function_of_its_name() -> None:
    assert {kind: row.handler.__name__ for kind, row in EVENTS.items()} == {kind: name_of(kind) for kind in EVENTS}
    assert [name for name, times in Counter(name for name, _ in HANDLERS).items() if times > 1] == []


def test_a_function_that_answers_stands_in_a_table() -> None:
    tabled = {(handler.__name__, handler.__module__) for handler in (*(row.handler for row in EVENTS.values()), *TIMERS.values())}
    assert set(HANDLERS) - tabled - {("on_node", "supervisor.core.nodes.replicas")} == set()  # a count of ranks


def test_every_event_has_a_row() -> None:
    kinds = {kind for module in (events, training_events) for _, kind in inspect.getmembers(module, inspect.isclass)}
    assert {kind for kind in kinds if issubclass(kind, JobEvent) and kind.__module__ != "supervisor.core.event"} == set(EVENTS)


def test_a_start_of_ranks_or_a_quarantine_waits_for_its_record() -> None:
    assert set(DURABLE) == {BeginAttempt, GatherNodes, Quarantine}
