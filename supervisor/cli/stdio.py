"""Makes our own stdin, stdout and stderr safe to use, whatever the caller left of them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from supervisor.report.layout import FactPage
    from supervisor.report.table import Table


def prepare() -> None:
    """Open the closed ones of descriptors 0, 1, 2, and let no text fail to print.

    The next file that is opened would take a closed one's number, and get all prints.
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
        # unbuffered (python -u): it would take part of a text for all of it, and forget the unwritten part (stdout_fails)
        sys.stdout = open(sys.stdout.fileno(), "w", encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115  a descriptor
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # file names that are not UTF-8, and arrows in a Latin-1 terminal
            stream.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  a device, open as long as the process is


def write(stream: TextIO, text: str) -> None:
    """Write `text` and a newline, at once. Raises OSError."""
    progress = sys.modules.get("checkpointing.command_line.progress")  # who has not loaded it shows none
    with progress.room() if progress is not None else contextlib.nullcontext():
        try:
            stream.write(text + "\n")
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError):
                stream.write("\n")  # a text larger than the buffer is not kept in it, and stdout_fails looks there
            raise


def show(*shown: FactPage | Table) -> None:
    """Write pages and tables to stdout, as its width and colours are, with an empty line between two. Raises OSError."""
    from supervisor.report.layout import surface_of  # noqa: PLC0415  for people only
    from supervisor.report.table import drawn  # noqa: PLC0415  as above

    if text := drawn(shown, surface_of(sys.stdout)):
        write(sys.stdout, text)


def write_json(value: object, indent: int = 1) -> None:
    """Write a Struct, or a collection of such, as JSON to stdout, as `json_text` makes it. Raises OSError."""
    write(sys.stdout, json_text(value, indent))


def json_text(value: object, indent: int = 1) -> str:
    """Return a Struct, or a collection of such, as JSON; indent 0: in one line.

    NaN and infinity are null. A text that JSON in UTF-8 cannot hold, or stdout cannot, is escaped: the name of a file may be any bytes.
    """
    import msgspec  # noqa: PLC0415  for programs only

    try:
        text = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(value), indent=indent or None)
    return text


def say(text: str) -> None:
    """Write a line of our own to stderr. If stderr takes nothing, the command and its exit code stay the same.

    In systemd's journal a line that begins with "error:" or "warning:" has that priority.
    """
    from supervisor.report.text import escaped  # noqa: PLC0415  most commands say nothing

    try:
        write(sys.stderr, f"{_journal_prefix(text)}supervise: {escaped(text)}")
    except (OSError, ValueError):
        _point_nowhere(2)


def _journal_prefix(text: str) -> str:
    if "JOURNAL_STREAM" not in os.environ:
        return ""
    from supervisor.report import journald  # noqa: PLC0415  in a unit only

    if not journald.is_journal(2, os.environ):
        return ""
    return journald.prefix("error" if text.startswith("error:") else "warning" if text.startswith("warning:") else "info")


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
        return any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))
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
