"""The supervisor's lines at the terminal: on stderr, each with the prefix "supervise: ", and the card.

No call blocks or raises, whatever stderr is: closed, a full pipe that nobody reads, a terminal held by ^S, a file on a disk that hangs.
Lines that cannot be written within a deadline are dropped and counted; the count is printed once writing works again.
In systemd's journal each line has a priority (journald.py); the card has that of an error.
"""

from __future__ import annotations

import errno
import os
import re
import select
import threading
import time
from typing import TYPE_CHECKING

from supervisor.report import journald
from supervisor.report.background_writer import BackgroundWriter
from supervisor.report.layout import render, surface_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.report.journald import Level
    from supervisor.report.layout import FactPage

_WRITE_DEADLINE_S = 2.0
#: Up to this many bytes a pipe that polls as writable takes without blocking (pipe(7), PIPE_BUF).
_CHUNK_BYTES = 4096
# what a rank printed may be quoted in our lines, and must not move the cursor or retitle the window
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class TerminalWriter:
    """Writes lines to `fd` (stderr). `quiet` drops lines of level info."""

    def __init__(self, fd: int = 2, *, quiet: bool = False, deadline_s: float = _WRITE_DEADLINE_S) -> None:
        """Start writing to `fd`, which stays the caller's."""
        self._fd = fd
        self._quiet = quiet
        self._deadline_s = deadline_s
        self._to_journal = journald.is_journal(fd, os.environ)
        self._stuck = self._is_closed = False
        self._lock = threading.Lock()  # the log's thread prints too
        self._line_end = b""  # what ends the ranks' unfinished line, before the next of ours
        self._writer = BackgroundWriter("terminal", self._write)

    @property
    def dropped(self) -> int:
        """How many calls' text could not be written."""
        return self._writer.dropped

    def is_a_tty(self) -> bool:
        """Return whether `fd` is a terminal, so that a person may read it."""
        return os.isatty(self._fd)

    def message(self, text: str, level: Level = "info") -> None:
        """Print `text`, each of its lines prefixed."""
        if level in {"warning", "error"}:
            text = f"{level}: {text}"
        elif self._quiet:
            return
        self._put(level, b"supervise: ", text.splitlines())

    def card(self, page: FactPage) -> None:
        """Print a card, also if quiet, for the width and the colours of this terminal. Its lines stay together and have no prefix."""
        head = journald.prefix("error") if self._to_journal else ""
        lines = render(page, surface_of(self._fd)).splitlines()  # without control characters but those of its colours
        self._queue(b"".join(f"{head}{line}\n".encode("utf-8", "backslashreplace") for line in lines))

    def lines(self, text: str) -> bool:
        """Print whole lines without prefix, such as log events as JSON. From any thread; always True."""
        self._queue(_encoded(text))
        return True

    def begin_line(self) -> None:
        """Begin a new line before the next text: a rank's last words, such as a progress bar, have no line end."""
        with self._lock:
            self._line_end = b"\n"

    def close(self, deadline_s: float = _WRITE_DEADLINE_S) -> None:
        """Wait until all is written, at most `deadline_s`. Later lines are not printed. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._writer.close(deadline_s)

    def _put(self, level: Level, begins: bytes, lines: Sequence[str]) -> None:
        head = (journald.prefix(level).encode() if self._to_journal else b"") + begins
        self._queue(b"".join(head + _encoded(line) + b"\n" for line in lines))

    def _queue(self, lines: bytes) -> None:
        with self._lock:
            line_end, self._line_end = self._line_end, b""
            self._writer.put(line_end + lines)

    def _write(self, data: bytes, dropped: int) -> bool:
        if dropped:
            data = f"supervise: warning: {dropped} messages could not be written here\n".encode() + data
        # once stuck, only check whether it moves again: a queue of lines must not wait for each
        until = time.monotonic() + (0.0 if self._stuck else self._deadline_s)
        self._stuck = not _write_all(self._fd, data, until)
        return not self._stuck


def _write_all(fd: int, data: bytes, until: float) -> bool:
    """Write `data`. False: closed, or not all of it was taken by `until`."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    view = memoryview(data)
    while view:
        wait_ms = max(0, int((until - time.monotonic()) * 1000))
        events = poll.poll(wait_ms)
        if not events or events[0][1] & (select.POLLNVAL | select.POLLERR | select.POLLHUP):
            return False
        try:
            view = view[os.write(fd, view[:_CHUNK_BYTES]) :]
        except OSError as error:
            # EAGAIN: somebody made the shared description non-blocking, and was faster than we after the poll
            if error.errno != errno.EAGAIN or time.monotonic() >= until:
                return False
    return True


def _encoded(line: str) -> bytes:
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", line).encode("utf-8", "backslashreplace")
