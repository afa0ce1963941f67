"""Makes our own stdin, stdout and stderr safe to use, whatever the caller left of them."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


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
    # python makes no stream for a descriptor that was closed, and most code that prints does not expect None
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
    try:
        stream.write(text + "\n")
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError):
            stream.write("\n")  # a text larger than the buffer is not kept in it, and stdout_fails looks there
        raise


def say(text: str) -> None:
    """Write a line of our own to stderr. If stderr takes nothing, the command and its exit code stay the same.

    In systemd's journal a line that begins with "error:" or "warning:" has that priority.
    """
    try:
        write(sys.stderr, f"{_journal_prefix(text)}supervise: {text}")
    except (OSError, ValueError):
        _point_nowhere(2)


def _journal_prefix(text: str) -> str:
    if "JOURNAL_STREAM" not in os.environ:
        return ""
    from supervisor.report import journald  # noqa: PLC0415  in a unit only

    if not journald.is_journal(2, os.environ):
        return ""
    return journald.prefix("error" if text.startswith("error:") else "warning" if text.startswith("warning:") else "info")


class StatusLine:
    """A line on stderr, with a spinner, that is overwritten and removed at the end. It is shown only on a terminal. A context manager."""

    def __init__(self) -> None:
        self._is_on = sys.stderr is not None and sys.stderr.isatty()
        self._drawn: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        """Return the line itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Remove the line."""
        self.show("")

    def show(self, text: str) -> None:
        """Replace the line with this text; "" removes it."""
        if not text and self._drawn is not None:
            self._drawn[0].stop()
            self._drawn = None
        if not text or not self._is_on:
            return
        if self._drawn is None:
            self._drawn = _begun_line()
        progress, task = self._drawn
        progress.update(task, description=text)


def _begun_line() -> tuple[Progress, TaskID]:
    from rich.console import Console  # noqa: PLC0415  heavy, and for a terminal only
    from rich.progress import Progress, SpinnerColumn, TextColumn  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    progress = Progress(SpinnerColumn(), text, console=Console(stderr=True), transient=True, redirect_stdout=False, expand=True)
    task = progress.add_task("", total=None)
    progress.start()
    return progress, task


def flush() -> None:
    """Flush stdout. Raises OSError if it cannot be written."""
    sys.stdout.flush()


def stdout_fails() -> bool:
    """Whether stdout cannot be written: the buffer still holds what could not be flushed, and fails again.

    The buffer does not keep more than its size; poll(2) shows a pipe without a reader anyway.
    """
    try:
        flush()
        poll = select.poll()
        poll.register(1, select.POLLOUT)
        return any(found & (select.POLLERR | select.POLLNVAL) for _, found in poll.poll(0))
    except (OSError, ValueError):
        return True


def point_stdout_nowhere() -> None:
    """Discard the rest of stdout's buffer, so that Python does not fail on it at its end."""
    _point_nowhere(1)


def _point_nowhere(fd: int) -> None:
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, fd)
        os.close(nowhere)
