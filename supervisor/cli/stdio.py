"""Our own stdin, stdout and stderr, made safe to use whatever the caller left of them.

In: the process's descriptors 0, 1, 2. Out: descriptors that are open, and streams that can print any text. Nothing fails here;
`stdout_fails` tells a failure of stdout (a closed pipe, a full disk) from any other. The process owns the streams.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import TextIO


def prepare() -> None:
    """Open what is closed among 0, 1, 2, and let no text fail to print.

    The next file that is opened would take a closed one's number, and be written to by whoever prints.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            # the lowest free number is this one: those below are open by now. Inheritable, as the standard ones are
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003  positional only
    # python makes no stream for a descriptor that was closed, and most of what prints does not reckon with None
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper) and isinstance(sys.stdout.buffer, io.RawIOBase):
        # unbuffered (python -u): it would take part of a text for all of it, and forget what it failed to write (stdout_fails)
        sys.stdout = open(sys.stdout.fileno(), "w", encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115  a descriptor
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # file names that are no UTF-8, and arrows in a Latin-1 terminal
            stream.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  a device, open as long as the process is


def write(stream: TextIO, text: str) -> None:
    """Write `text` and a newline, at once. Raises OSError."""
    stream.write(text + "\n")
    stream.flush()


def say(text: str) -> None:
    """Write a line of our own to stderr. A stderr that takes nothing ends no command, and changes no exit code."""
    try:
        write(sys.stderr, f"supervise: {text}")
    except (OSError, ValueError):
        _point_nowhere(2)


class StatusLine:
    """A line on stderr that is written over, and taken away at the end. Nothing is shown where it is not `wanted`, or to no terminal."""

    def __init__(self, *, wanted: bool) -> None:
        self.is_on = wanted and sys.stderr is not None and sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Show this in place of what was there."""
        if self.is_on:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        self.show("")


def flush() -> None:
    """Write out what was printed on stdout. Raises OSError where it cannot be written."""
    sys.stdout.flush()


def stdout_fails() -> bool:
    """Tell whether stdout cannot be written: what failed to be flushed is still in its buffer, and fails again.

    What is larger than the buffer is not kept there; a pipe that nobody reads any more is known without it.
    """
    try:
        flush()
        poll = select.poll()
        poll.register(1, select.POLLOUT)
        return any(found & (select.POLLERR | select.POLLNVAL) for _, found in poll.poll(0))
    except (OSError, ValueError):
        return True


def point_stdout_nowhere() -> None:
    """Let what is left in stdout's buffer vanish, so that python does not fail on it when it ends."""
    _point_nowhere(1)


def _point_nowhere(fd: int) -> None:
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, fd)
        os.close(nowhere)
