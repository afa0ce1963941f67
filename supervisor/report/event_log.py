"""The structured log of a supervisor: JSON lines in the state directory, from a closed list of events.

Each line has the bound fields (run_id, attempt, incident, node, rank). They go to `<state>/supervise.log`, two files of at most LIMIT_BYTES
each, and with --verbose to stderr too. A thread of its own writes, so that a full, slow or hung disk never reaches the caller; lost lines
are counted, and the next line that can be written reports them as `log.lost`.

structlog is imported when a log is opened and not before: it costs more than all else together, and no reading command needs it. It is
imported without rich, which it would load, with pygments, for a console renderer that is not used here: 4 MiB of memory, 20 ms of CPU.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, Literal

from supervisor.report.background_writer import BackgroundWriter
from supervisor.report.log_events import LogEvent

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from pathlib import Path

    from supervisor.report.log_events import LogLevel
    from supervisor.report.terminal import TerminalWriter

LIMIT_BYTES = 8 << 20
FILE_NAME = "supervise.log"


class EventLog:
    """A log to write to. `bind` returns another view of the same log."""

    def __init__(self, logger: Any, writer: BackgroundWriter[bytes], file: _BoundedFile) -> None:  # noqa: ANN401  structlog types its loggers as Any
        """Keep what `open_log` made."""
        self._logger = logger
        self._writer = writer
        self._file = file

    def bind(self, **fields: object) -> EventLog:
        """Return a log whose every line carries `fields` too."""
        return EventLog(self._logger.bind(**fields), self._writer, self._file)

    def write(self, event: LogEvent, level: LogLevel | None = None, /, **fields: object) -> None:
        """Log one event, at its own level unless `level` is given. Values that JSON does not know are logged as their repr."""
        getattr(self._logger, level or event.level)(event.value, **fields)

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
    log_format: Literal["auto", "console", "json"] = "auto",
    limit_bytes: int = LIMIT_BYTES,
) -> EventLog:
    """Open the log of the state directory. With `terminal` (--verbose) each line is shown there too, in `log_format`."""
    structlog = _import_structlog()
    as_json = structlog.processors.JSONRenderer()
    as_words = structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"], drop_missing=True)
    shown = as_words if log_format == "console" or (log_format == "auto" and terminal is not None and terminal.is_a_tty()) else as_json
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)

    def line(fields: dict[str, object]) -> bytes:
        return str(as_json(None, "", fields)).encode("utf-8", "backslashreplace") + b"\n"

    def lost_line(count: int) -> bytes:
        return line(dict(stamp(None, "", {"event": LogEvent.LOG_LOST.value, "level": LogEvent.LOG_LOST.level, "lines": count})))

    file = _BoundedFile(state / FILE_NAME, limit_bytes, lost_line)
    writer = BackgroundWriter("eventlog", file.write)

    def emit(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        writer.put(line(dict(fields)))
        if terminal is not None:
            terminal.raw(str(shown(None, "", dict(fields))))
        raise structlog.DropEvent  # it is out; there is no logger behind this chain

    logger = structlog.wrap_logger(
        None,
        processors=[structlog.processors.add_log_level, stamp, structlog.processors.format_exc_info, emit],
        wrapper_class=structlog.make_filtering_bound_logger(0 if terminal is not None else "info"),
        cache_logger_on_first_use=True,
    )
    return EventLog(logger, writer, file)


def _import_structlog() -> Any:  # noqa: ANN401  a module
    modules: dict[str, Any] = sys.modules
    hidden = "rich" not in modules
    if hidden:
        modules["rich"] = None  # makes `import rich` raise ImportError, for which structlog is prepared
    try:
        import structlog  # noqa: PLC0415  see the head of this module
    finally:
        if hidden:
            del modules["rich"]
    return structlog
