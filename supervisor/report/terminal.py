"""The supervisor's lines at the terminal: on stderr, each with the prefix "supervise: ", and the card.

At a terminal each line begins with the time of day, and has a colour of its own beside what the ranks print: `14:13:20 supervise: …`. In a
pipe, a file or systemd's journal, which has the time itself, it has neither.

No call blocks or raises, whatever stderr is: closed, a full pipe that nobody reads, a terminal held by ^S, a file on a disk that hangs.
Lines that cannot be written within a deadline are dropped and counted; the count is printed once writing works again.
In systemd's journal each line has a priority (journald.py); the card has that of an error.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from typing import TYPE_CHECKING, Final

from supervisor.job.local_time import clock_text
from supervisor.report import journald
from supervisor.report.background_writer import BackgroundWriter
from supervisor.report.layout import Tone, painted, render, surface_of
from supervisor.report.text import escaped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisor.config.settings import Settings
    from supervisor.report.journald import Level
    from supervisor.report.layout import FactPage

_WRITE_DEADLINE_S = 2.0
#: Up to this many bytes a pipe that polls as writable takes without blocking (pipe(7), PIPE_BUF).
_CHUNK_BYTES = 4096
_PREFIX = "supervise: "
#: How a line of each level reads; its text says the level too, for who sees no colour.
_TONES: Final[Mapping[Level, Tone]] = {"info": Tone.LABEL, "notice": Tone.STRONG, "warning": Tone.WARNING, "error": Tone.BAD}


class TerminalWriter:
    """Writes lines to `fd` (stderr). `quiet` drops lines of level info."""

    def __init__(self, fd: int = 2, *, quiet: bool = False, deadline_s: float = _WRITE_DEADLINE_S) -> None:
        """Start writing to `fd`, which stays the caller's."""
        self._fd = fd
        self._quiet = quiet
        self._deadline_s = deadline_s
        self._to_journal = journald.is_journal(fd, os.environ)
        self._is_a_tty, self._surface = os.isatty(fd), surface_of(fd)
        self._stuck = self._is_closed = False
        self._lock = threading.Lock()  # the log's thread prints too
        self._line_end = b""  # the end of the ranks' unfinished line, before supervise's next one
        self._writer = BackgroundWriter("terminal", self._write)

    @property
    def dropped(self) -> int:
        """How many calls' text could not be written."""
        return self._writer.dropped

    @property
    def is_a_tty(self) -> bool:
        """Whether `fd` is a terminal, so that a person may read it."""
        return self._is_a_tty

    def message(self, text: str, level: Level = "info") -> None:
        """Print `text`, each of its lines prefixed."""
        if level in {"warning", "error"}:
            text = f"{level}: {text}"
        elif self._quiet:
            return
        self._queue(b"".join(self._line(level, line) for line in text.splitlines()))

    def waiting(self, text: str) -> None:
        """Print what a person at a terminal waits for. In a pipe or a file it would be a line too many."""
        if self._is_a_tty:
            self.message(text)

    def card(self, page: FactPage) -> None:
        """Print a card, also if quiet, for the width and the colours of this terminal. Its lines stay together and have no prefix."""
        head = journald.prefix("error") if self._to_journal else ""
        lines = render(page, surface_of(self._fd)).splitlines()  # without control characters but those of its colours
        self._queue(b"".join(f"{head}{line}\n".encode("utf-8", "backslashreplace") for line in lines))

    def lines(self, text: str) -> bool:
        """Print whole lines without prefix, such as log events as JSON. From any thread; always True."""
        self._queue(escaped(text).encode())
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

    def _line(self, level: Level, text: str) -> bytes:
        """Return one line of supervise, as this stream gets it."""
        line = escaped(_PREFIX + text)
        if self._to_journal:
            line = journald.prefix(level) + line
        elif self._is_a_tty:
            clock = painted(clock_text(time.time()), Tone.FAINT, self._surface)
            line = f"{clock} {painted(line, _TONES[level], self._surface)}"
        return line.encode() + b"\n"

    def _queue(self, lines: bytes) -> None:
        with self._lock:
            line_end, self._line_end = self._line_end, b""
            self._writer.put(line_end + lines)

    def _write(self, data: bytes, dropped: int) -> bool:
        if dropped:
            data = self._line("warning", f"warning: {dropped} messages could not be written here") + data
        # once stuck, only check whether it moves again: a queue of lines must not wait for each
        until = time.monotonic() + (0.0 if self._stuck else self._deadline_s)
        self._stuck = not _write_all(self._fd, data, until)
        return not self._stuck


def terminal_of(settings: Settings) -> TerminalWriter:
    """Return what writes to this process's stderr, as loud as the user asks."""
    return TerminalWriter(quiet=settings.terminal.verbosity == "quiet")


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
