"""Renders log events as lines: one function a form."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.report.log_events import LogFormat, LogRecord

#: The version of the Elastic Common Schema that Elastic's own libraries write: it has every name below, and so have later ones.
ECS_VERSION: Final = "1.6.0"
#: Which field of an event is its message: the first that it has.
_SENTENCES: Final = ("summary", "text", "error", "outcome", "reason", "what")


def renderer(log_format: LogFormat) -> Callable[[LogRecord], str]:
    """Return what renders an event in this format, without a line end."""
    return {"console": _console, "ecs": _ecs}.get(log_format, _json)


def _json(record: LogRecord) -> str:
    """Render one JSON object; a value that JSON does not know as its repr."""
    event, level, fields = record
    return json.dumps({**fields, "event": event, "level": level}, default=repr)


def _console(record: LogRecord) -> str:
    """Render the event for a person: its values by repr, so that a line end in one begins no line."""
    event, level, fields = record
    pairs = " ".join(f"{name}={value!r}" for name, value in sorted(fields.items()) if name != "timestamp")
    return f"{fields['timestamp']} [{level:<9}] {event:<30} {pairs}".rstrip()


def _ecs(record: LogRecord) -> str:
    """Render the event in ECS's names; its own fields, which ECS has no names for, are together in `supervise`."""
    event, level, fields = record
    own = {name: value for name, value in fields.items() if name not in {"timestamp", "node"}}
    host = {"host.name": fields["node"]} if "node" in fields else {}
    sentence = next((own[key] for key in _SENTENCES if own.get(key)), "")
    line = {
        "@timestamp": fields["timestamp"],
        "log.level": level,
        "message": f"{event}: {sentence}" if sentence else event,
        "ecs.version": ECS_VERSION,
        "event.kind": "event",
        "event.dataset": "supervise",
        "event.action": event,
        "service.name": "supervise",
        "process.pid": os.getpid(),
        **host,
        "supervise": own,
    }
    return json.dumps(line, default=repr)
