"""A pseudo-terminal for what a command draws on stderr, and the screen as a person sees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
import threading
from typing import TYPE_CHECKING, Any

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

_CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


def screen_of(text: str) -> list[str]:
    """Return the rows of a screen to which this was written, without empty ones at its end: of the controls, those that rich uses."""
    rows: list[list[str]] = [[]]
    row = column = at = 0
    while at < len(text):
        control = _CONTROL.match(text, at)
        if control:
            at = control.end()
            if control[2] == "A":
                row = max(0, row - int(control[1] or 1))
            elif control[2] == "K":
                rows[row] = []
            continue
        character, at = text[at], at + 1
        if character == "\n":
            row, column = row + 1, 0
            rows += [[]] if row == len(rows) else []
        elif character == "\r":
            column = 0
        else:
            rows[row] += [" "] * (column - len(rows[row]))
            rows[row][column : column + 1] = character
            column += 1
    shown = ["".join(cells).rstrip() for cells in rows]
    while shown and not shown[-1]:
        shown.pop()
    return shown


class Terminal:
    """One terminal. fd: its end for a program; text: all that was written to it."""

    def __init__(self, columns: int) -> None:
        """Open it, and read what comes."""
        self._master, self.fd = os.openpty()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.text = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while block := os.read(self._master, 1 << 16):
                self.text += block.decode("utf-8", "replace")

    def await_text(self, pattern: str) -> str:
        """Return what fits the pattern, once it was written."""
        return wait_for(lambda: re.search(pattern, _CONTROL.sub("", self.text)), f"{pattern} on the terminal").group(0)

    @property
    def rows(self) -> list[str]:
        """The screen now."""
        return screen_of(self.text)

    @property
    def lines(self) -> list[str]:
        """Every line that was ever written, without its colours: each state of a bar is one."""
        return [line.rstrip() for line in re.split(r"[\r\n]+", _CONTROL.sub("", self.text)) if line.strip()]

    def press(self, key: str) -> None:
        """Press a key, of which this is the character."""
        os.write(self._master, key.encode())

    def close(self) -> None:
        """Hang up."""
        os.close(self.fd)

    def start(self, argv: list[str], **more: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401  of Popen
        """Start a program whose controlling terminal, and stderr, this is."""

        def take() -> None:
            fcntl.ioctl(self.fd, termios.TIOCSCTTY, 0)

        return subprocess.Popen(argv, stdin=self.fd, stderr=self.fd, start_new_session=True, preexec_fn=take, **more)  # noqa: S603, PLW1509


@contextlib.contextmanager
def stderr_is_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> Iterator[Terminal]:
    """Make this process's stderr a terminal, for a test that calls a command. To be used within the test: pytest sets stderr before it."""
    terminal = Terminal(columns)
    with os.fdopen(os.dup(terminal.fd), "w", encoding="utf-8", buffering=1) as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", str(columns))
        patch.delenv("NO_COLOR", raising=False)
        yield terminal
    termios.tcdrain(terminal.fd)  # until all is read
    terminal.close()


def at_once(monkeypatch: pytest.MonkeyPatch, *, delay_s: float = 0.0, line_every_s: float = 30.0) -> None:
    """Let a bar come, and a plain line, after so long."""
    from checkpointing.command_line import progress  # noqa: PLC0415  the one place

    monkeypatch.setattr(progress, "_DELAY_S", delay_s)
    monkeypatch.setattr(progress, "_LINE_EVERY_S", line_every_s)
    monkeypatch.setattr(progress, "_FRAME_S", 0.01)
