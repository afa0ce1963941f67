"""Renders log events as lines, with structlog. Imported by the threads that write the log, after the ranks are started (event_log.py)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import structlog
from structlog.dev import ConsoleRenderer
from structlog.processors import JSONRenderer, add_log_level

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import EventDict, Processor, WrappedLogger

    from supervisor.report.log_events import LogFormat, LogRecord

#: The version of the Elastic Common Schema that Elastic's own libraries write: it has every name below, and so have later ones.
ECS_VERSION: Final = "1.6.0"
#: Which field of an event is its message: the first that it has.
_SENTENCES: Final = ("summary", "text", "error", "outcome", "reason", "what")


def renderer(log_format: LogFormat) -> Callable[[LogRecord], str]:
    """Return what renders an event in this format, without a line end."""
    processors: list[Processor] = [add_log_level]
    if log_format == "console":
        # repr_native_str: a line end in a value must not begin a line. TerminalWriter would show the escape sequences of colours as text.
        processors.append(ConsoleRenderer(colors=False, repr_native_str=True))
    else:
        processors += [*([ecs] if log_format == "ecs" else []), JSONRenderer()]
    logger = structlog.wrap_logger(structlog.ReturnLogger(), processors, wrapper_class=structlog.BoundLogger).bind()

    def render(record: LogRecord) -> str:
        event, level, fields = record
        return str(getattr(logger, level)(event, **fields))

    return render


def ecs(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
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
