"""The state as JSON in the journal: its changes, and the state after them. Pure."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Fields of the state that are compared field by field themselves.
NESTED = frozenset({"run", "attempt"})
#: The keys of a list that is written by what became of the one before it (`patch`).
_PATCH = frozenset({"from", "keep", "then"})
#: The key of the fields that have their default again.
GONE = "gone"


def lean(value: Any) -> Any:  # noqa: ANN401  any value of the core
    """Return a value as JSON has it, without the fields that have their default. Of a dict every key stays."""
    if isinstance(value, Struct):
        if value.__struct_config__.array_like:
            return value
        fields = ((name, getattr(value, name), default) for name, default in _defaults(type(value)))
        return {name: lean(given) for name, given, default in fields if given is not default and given != default}
    if isinstance(value, tuple | list):
        return [lean(item) for item in value] if value else []
    return {name: lean(item) for name, item in value.items()} if isinstance(value, dict) else value


@cache
def _defaults(cls: type[Struct]) -> tuple[tuple[str, Any], ...]:
    known = msgspec.structs.fields(cls)
    fresh_values = {item.name: item.default_factory() for item in known if item.default_factory is not msgspec.NODEFAULT}
    return tuple((item.name, fresh_values.get(item.name, item.default)) for item in known)


def patch(after: Sequence[Any], before: Sequence[Any]) -> dict[str, Any] | None:
    """Return what became of a list: from which row on it stays, how many rows, and what follows them. None: too little of it stays."""
    if not after or not before:
        return None
    first = next((place for place, row in enumerate(before) if row is after[0] or row == after[0]), None)
    if first is None:
        return None
    keep = 0
    for row, old in zip(after, before[first:], strict=False):
        if row is not old and row != old:
            break
        keep += 1
    return {"from": first, "keep": keep, "then": list(after[keep:])} if keep > 1 else None


def changed(after: Any, before: Any) -> Any:  # noqa: ANN401  a field of the state, as a value or as JSON
    """Return a field as its record has it: a list of which much stays as a patch."""
    both = isinstance(after, tuple | list) and isinstance(before, tuple | list)
    patched = patch(after, before) if both else None
    return after if patched is None else patched


def merge(values: dict[str, Any], changes: dict[str, Any]) -> None:
    """Apply changes of a state to it, both as JSON."""
    for name in changes.get(GONE, ()):
        values.pop(name, None)
    for name, value in changes.items():
        if name == GONE:
            continue
        known = values.get(name)
        if name in NESTED and isinstance(known, dict) and isinstance(value, dict):
            merge(known, value)
        elif isinstance(value, dict) and value.keys() == _PATCH:
            rows = known if isinstance(known, list) else []
            values[name] = [*rows[value["from"] : value["from"] + value["keep"]], *value["then"]]
        else:
            values[name] = value


def changes_of(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Return what `merge` makes the state `after` of the state `before` with, all as JSON."""
    changes: dict[str, Any] = {}
    for name, value in after.items():
        known = before.get(name)
        if name in NESTED and isinstance(known, dict) and isinstance(value, dict):
            nested = changes_of(value, known)
            changes |= {name: nested} if nested else {}
        elif name not in before or value != known:
            changes[name] = changed(value, known)
    gone = [name for name in before if name not in after]
    return changes | ({GONE: gone} if gone else {})


def copied(values: dict[str, Any]) -> dict[str, Any]:
    """Return a state, as JSON, that `merge` can change without changing this one."""
    return {name: {**value} if name in NESTED and isinstance(value, dict) else value for name, value in values.items()}


def progressed(values: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Return what a report of progress that changes nothing else changes of a state. values: the state; data: the event; both as JSON.

    The record of such a report says no more than this: a job reports all day.
    """
    run, attempt = values.get("run") or {}, values.get("attempt") or {}
    before, step = attempt.get("progress") or {}, data.get("step")
    progress = {"step": step, "phase": data.get("phase")}
    changes: dict[str, Any] = {}
    if step is not None and not (isinstance(run.get("high_water"), int) and run["high_water"] >= step):
        changes["run"] = {"high_water": step}
    of_attempt: dict[str, Any] = {} if before == progress else {"progress": progress}
    if attempt.get("steps_seen") != data.get("steps_seen"):
        of_attempt["steps_seen"] = data.get("steps_seen")
    return changes | ({"attempt": of_attempt} if of_attempt else {})
