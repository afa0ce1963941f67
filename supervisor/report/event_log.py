"""The structured log of a supervisor: JSON lines in the state directory, from a closed list of events.

Each line has the bound fields (job, run_id, attempt, incident, node, rank). They go to `<state>/supervise.log`, two files of at most
LIMIT_BYTES each, and to stderr where terminal.verbosity asks for it; as `ecs` in the names of the Elastic Common Schema.
A thread of its own writes, so
that a full, slow or hung disk never reaches the caller; lost lines are counted, and the next line that can be written reports them as
`log.lost`.

A line is made here and not by structlog, whose import alone was an eighth of a run's start (60 modules, asyncio and logging among them).
"""

from __future__ import annotations

import contextlib
import json
import os
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from supervisor.report.background_writer import BackgroundWriter
from supervisor.report.log_events import LogEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from supervisor.report.log_events import LogLevel
    from supervisor.report.terminal import TerminalWriter

LIMIT_BYTES = 8 << 20
FILE_NAME = "supervise.log"
LogFormat = Literal["auto", "console", "json", "ecs"]
#: The version of the Elastic Common Schema that Elastic's own libraries write: it has every name below, and so have later ones.
ECS_VERSION: Final = "1.6.0"
#: What of an event is its message: the first that it has.
_SENTENCES: Final = ("summary", "text", "error", "outcome", "reason", "what")


class EventLog:
    """A log to write to. `bind` returns another view of the same log. show: prints each line too, those of level debug included."""

    def __init__(
        self,
        writer: BackgroundWriter[bytes],
        file: _BoundedFile,
        line: Callable[[Mapping[str, object]], bytes],
        show: Callable[[Mapping[str, object]], None] | None,
        bound: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Keep what `open_log` made."""
        self._writer = writer
        self._file = file
        self._line = line
        self._show = show
        self._bound = bound

    def bind(self, **fields: object) -> EventLog:
        """Return a log whose every line carries `fields` too."""
        return EventLog(self._writer, self._file, self._line, self._show, {**self._bound, **fields})

    def write(self, event: LogEvent, level: LogLevel | None = None, /, **fields: object) -> None:
        """Log one event, at its own level unless `level` is given. Values that JSON does not know are logged as their repr."""
        level = level or event.level
        if level == "debug" and self._show is None:
            return
        whole = {**self._bound, **fields, **_stamp(event, level)}
        self._writer.put(self._line(whole))
        if self._show is not None:
            self._show(whole)

    @property
    def lost(self) -> int:
        """How many lines could not be written so far."""
        return self._writer.dropped

    def close(self, deadline_s: float = 1.0) -> None:
        """Wait until all is written, at most `deadline_s`."""
        if self._writer.close(deadline_s):
            self._file.close()


class _BoundedFile:
    """A file and the one before it. Opened again after a failure; each failed write loses its line and nothing else."""

    def __init__(self, path: Path, limit_bytes: int, lost_line: Callable[[int], bytes]) -> None:
        self._path = path
        self._limit = limit_bytes
        self._lost_line = lost_line
        self._fd = -1
        self._size = 0

    def write(self, data: bytes, lost: int) -> bool:
        if lost:
            data = self._lost_line(lost) + data
        try:
            if self._fd < 0:
                self._open()
            elif self._size + len(data) > self._limit:
                self.close()
                self._path.replace(self._path.with_name(self._path.name + ".1"))
                self._open()
            written = os.write(self._fd, data)
            self._size += written
        except OSError:
            self.close()
            return False
        if written < len(data):  # the disk filled up within the line: end it, so that the next one can be read
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size - written)
                self._size -= written
            return False
        return True

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._size = os.fstat(self._fd).st_size


def open_log(
    state: Path,
    terminal: TerminalWriter | None = None,
    *,
    log_format: LogFormat = "auto",
    limit_bytes: int = LIMIT_BYTES,
) -> EventLog:
    """Open the log of the state directory. With `terminal` (verbose) each line is shown there too, in `log_format`."""
    as_words = log_format == "console" or (log_format == "auto" and terminal is not None and terminal.is_a_tty())
    as_json = _ecs if log_format == "ecs" else _json

    def line(fields: Mapping[str, object]) -> bytes:
        return as_json(fields).encode("utf-8", "backslashreplace") + b"\n"

    def show(fields: Mapping[str, object]) -> None:
        if terminal is not None:
            terminal.raw(_words(fields) if as_words else as_json(fields))

    def lost_line(count: int) -> bytes:
        return line({**_stamp(LogEvent.LOG_LOST, LogEvent.LOG_LOST.level), "lines": count})

    file = _BoundedFile(state / FILE_NAME, limit_bytes, lost_line)
    return EventLog(BackgroundWriter("eventlog", file.write), file, line, show if terminal is not None else None)


def _stamp(event: LogEvent, level: LogLevel) -> dict[str, object]:
    return {"event": event.value, "level": level, "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z")}


def _json(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, default=repr)


def _ecs(fields: Mapping[str, object]) -> str:
    """Return an event in ECS's names; its own fields, which ECS has no names for, are together in `supervise`."""
    own = {name: value for name, value in fields.items() if name not in {"timestamp", "level", "event", "node"}}
    sentence = next((str(own[name]) for name in _SENTENCES if own.get(name)), "")
    common = {
        "@timestamp": fields["timestamp"],
        "log.level": fields["level"],
        "message": f"{fields['event']}: {sentence}" if sentence else fields["event"],
        "ecs.version": ECS_VERSION,
        "event.kind": "event",
        "event.dataset": "supervise",
        "event.action": fields["event"],
        "service.name": "supervise",
        "process.pid": os.getpid(),
    }
    host = {"host.name": fields["node"]} if "node" in fields else {}
    return _json({**common, **host, "supervise": own})


def _words(fields: Mapping[str, object]) -> str:
    """Return name=value for each field, time, level and event first."""
    first = ("timestamp", "level", "event")
    return " ".join(f"{name}={fields[name]!r}" for name in (*first, *(name for name in fields if name not in first)))
