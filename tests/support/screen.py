"""A terminal in which `supervise status --watch` runs, as a person sees it."""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
_DRAWING = re.compile(r"\x1b\[[0-9;]*[mKJ]|\r")


class Screen:
    """A terminal in which the command runs, as its session's own: Ctrl-C reaches it, and so does a new size."""

    def __init__(self, state_root: Path, rows: int, columns: int, *options: str, **environ: str) -> None:
        self.pty, self.terminal = os.openpty()
        self._set_size(rows, columns)
        self.modes = termios.tcgetattr(self.terminal)
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character
        command = [sys.executable, "-P", "-m", "supervisor", "status", "--watch", "--state-dir", str(state_root), *options]
        self.process = subprocess.Popen(  # noqa: S603  the program under test
            command, env={"PYTHONPATH": str(ROOT), "HOME": str(state_root), "TERM": "xterm", **environ},
            stdin=self.terminal, stdout=self.terminal, stderr=self.terminal, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  no threads here
        )  # fmt: skip

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size, of which the program is told."""
        self._set_size(rows, columns)
        os.killpg(self.process.pid, signal.SIGWINCH)

    @property
    def pages(self) -> list[str]:
        """The pages that were drawn so far, as text; the last one may be unfinished."""
        return _DRAWING.sub("", self.text).split("\x1b[H")[1:]

    def read_until(self, wanted: Callable[[str], bool], within_s: float = 60.0) -> None:
        """Read what is shown until it is as wanted."""
        until = time.monotonic() + within_s
        while not wanted(self.text):
            ready, _, _ = select.select([self.pty], [], [], max(0.0, until - time.monotonic()))
            assert ready, self.text
            self.text += self._decoder.decode(os.read(self.pty, 65536))


@contextmanager
def watching(state_root: Path, *options: str, rows: int = 40, columns: int = 80, **environ: str) -> Iterator[Screen]:
    """Watch the newest job below a state directory."""
    screen = Screen(state_root, rows, columns, *options, **environ)
    try:
        yield screen
    finally:
        screen.process.kill()
        screen.process.wait()
        os.close(screen.pty)
        os.close(screen.terminal)
