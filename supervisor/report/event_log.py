"""The structured log of a supervisor: lines in the state directory, from a closed list of events.

Each line has the bound fields (job, run_id, attempt, incident, node, rank). They go to `<state>/supervise.log`, two files of at most
LIMIT_BYTES each, and to stderr where terminal.verbosity asks for it. Threads of their own render and write, so that a full, slow or hung
disk never reaches the caller; lost lines are counted, and the next line that can be written reports them as `log.lost`.

log_lines.py renders the lines. These threads import it, and structlog for a person's terminal, and not before the ranks are started:
structlog takes a tenth of a second of CPU time, for which a start would wait. Until then events wait in the queue.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from supervisor.report.background_writer import BackgroundWriter
from supervisor.report.log_events import LogEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from supervisor.report.log_events import LogFormat, LogLevel, LogRecord
    from supervisor.report.terminal import TerminalWriter

LIMIT_BYTES = 8 << 20
FILE_NAME = "supervise.log"
#: A start that takes longer than this (other nodes are awaited, a mirror restores) is not delayed by an import, and its user reads the log.
HELD_S: Final = 30.0


class EventLog:
    """A log to write to. `bind` returns another view of the same log."""

    def __init__(self, outputs: Sequence[_Output], held_until: LogEvent | None, bound: Mapping[str, object] = MappingProxyType({})) -> None:
        """Write to the outputs that `open_log` made: the file, and the terminal with --verbose."""
        self._outputs = outputs
        self._held_until = held_until
        self._bound = bound

    def bind(self, **fields: object) -> EventLog:
        """Return a log whose every line carries `fields` too."""
        return EventLog(self._outputs, self._held_until, {**self._bound, **fields})

    def write(self, event: LogEvent, level: LogLevel | None = None, /, **fields: object) -> None:
        """Log one event, at its own level unless `level` is given. Values that JSON does not know are logged as their repr.

        The values are rendered later, in another thread: the caller must not change them any more.
        """
        level = level or event.level
        if level == "debug" and len(self._outputs) == 1:
            return
        for output in self._outputs:
            output.put((event.value, level, {**self._bound, **fields, "timestamp": _now()}))
            if event is self._held_until:
                output.may_render.set()

    @property
    def lost(self) -> int:
        """How many lines the file does not have so far."""
        return self._outputs[0].lost

    def close(self, deadline_s: float = 2.0) -> None:
        """Wait until all is written, at most `deadline_s`. A second call does nothing."""
        until = time.monotonic() + deadline_s
        for output in self._outputs:
            output.may_render.set()
        for output in self._outputs:
            output.close(max(0.0, until - time.monotonic()))


class _Output:
    """Renders records in a thread of its own, so that a hung disk does not silence the terminal, and gives the text to `sink`.

    may_render: nothing is rendered before it is set, for HELD_S at most. sink: returns whether it took the text. end: called when all is
    written.
    """

    def __init__(self, name: str, log_format: LogFormat, sink: Callable[[str], bool], end: Callable[[], None] = lambda: None) -> None:
        self.may_render = threading.Event()
        self._log_format, self._sink, self._end = log_format, sink, end
        self._render: Callable[[LogRecord], str] | None = None
        self._is_closed = False
        self._writer: BackgroundWriter[LogRecord] = BackgroundWriter(name, self._write)

    def put(self, record: LogRecord) -> None:
        self._writer.put(record)

    @property
    def lost(self) -> int:
        return self._writer.dropped

    def close(self, deadline_s: float) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._writer.close(deadline_s):  # else its thread still uses the sink
                self._end()

    def _write(self, record: LogRecord, lost: int) -> bool:
        if not self.may_render.wait(HELD_S):
            self.may_render.set()
        records = [record]
        if lost:
            records.insert(0, (LogEvent.LOG_LOST.value, LogEvent.LOG_LOST.level, {"lines": lost, "timestamp": _now()}))
        try:
            text = "".join(f"{self._rendered(each)}\n" for each in records)
        except Exception:  # noqa: BLE001 (a disk without our packages, a repr that raises: the line is lost and counted, the thread continues)
            return False
        return self._sink(text)

    def _rendered(self, record: LogRecord) -> str:
        if self._render is None:
            from supervisor.report.log_lines import renderer  # noqa: PLC0415 (see the module's docstring)

            self._render = renderer(self._log_format)
        return self._render(record)


class _BoundedFile:
    """A file and the one before it. Opened again after a failure; each failed write loses its line and nothing else."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path = path
        self._limit = limit_bytes
        self._fd = -1
        self._size = 0

    def write(self, text: str) -> bool:
        data = text.encode("utf-8", "backslashreplace")
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
    held_until: LogEvent | None = None,
) -> EventLog:
    """Open the log of the state directory. With `terminal` (verbose) each line is shown there too, in `log_format`.

    held_until: nothing is rendered before this event, for at most HELD_S, or before the log is closed.
    """
    file = _BoundedFile(state / FILE_NAME, limit_bytes)
    outputs = [_Output("eventlog", "ecs" if log_format == "ecs" else "json", file.write, file.close)]
    if terminal is not None:
        shown_as = ("console" if terminal.is_a_tty else "json") if log_format == "auto" else log_format
        outputs.append(_Output("eventlog-shown", shown_as, terminal.lines))
    for output in outputs if held_until is None else ():
        output.may_render.set()
    return EventLog(outputs, held_until)


def _now() -> str:
    """Return the time of an event, which is rendered later."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
