"""Renders log events as lines: JSON as it is, and what a person reads with structlog. Imported by the threads that write the log.

structlog is imported where a line is for a person: it brings 110 modules, a fifth of what a whole start costs.
"""

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
    if log_format == "console":
        return _console()
    named = ecs if log_format == "ecs" else dict[str, object]

    def render(record: LogRecord) -> str:
        event, level, fields = record
        return json.dumps(named({**fields, "event": event, "level": level}), default=repr)

    return render


def _console() -> Callable[[LogRecord], str]:
    import structlog  # noqa: PLC0415 (see the module's docstring)

    # repr_native_str: a line end in a value must not begin a line. TerminalWriter would show the escape sequences of colours as text.
    renders = structlog.dev.ConsoleRenderer(colors=False, repr_native_str=True)

    def render(record: LogRecord) -> str:
        event, level, fields = record
        return str(renders(None, level, {**fields, "event": event, "level": level}))

    return render


def ecs(event: dict[str, object]) -> dict[str, object]:
    """Return an event in ECS's names; its own fields, which ECS has no names for, are together in `supervise`."""
    name, level, timestamp = (event.pop(key) for key in ("event", "level", "timestamp"))
    host = {"host.name": event.pop("node")} if "node" in event else {}
    sentence = next((event[key] for key in _SENTENCES if event.get(key)), "")
    return {
        "@timestamp": timestamp,
        "log.level": level,
        "message": f"{name}: {sentence}" if sentence else name,
        "ecs.version": ECS_VERSION,
        "event.kind": "event",
        "event.dataset": "supervise",
        "event.action": name,
        "service.name": "supervise",
        "process.pid": os.getpid(),
        **host,
        "supervise": event,
    }
