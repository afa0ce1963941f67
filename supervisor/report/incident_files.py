"""Writes the small files of an incident, in order. Each file is whole or not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpointing.io import staging
from supervisor.report import layout
from supervisor.report.background_writer import BackgroundWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.report.layout import FactPage


class IncidentFiles:
    """One writer of small files. Every loss is reported by a call of `failed`."""

    def __init__(self, failed: Callable[[str, str], None]) -> None:
        """Start the thread. `failed(what, cause)` is called in any thread; `what` is a file's name, or how many files."""
        self._failed = failed
        self._writer: BackgroundWriter[tuple[Callable[[], Path], str, str | FactPage]] = BackgroundWriter("incident-files", self._write)

    def write_soon(self, directory: Callable[[], Path], name: str, content: str | FactPage) -> None:
        """Queue `content` for `directory()/name`. `directory` is called on the writer's thread: it may wait for a disk."""
        self._writer.put((directory, name, content))

    def close(self, deadline_s: float) -> None:
        """Wait until all is written, at most `deadline_s`."""
        if not self._writer.close(deadline_s):
            self._failed("the last files", f"the disk did not answer within {deadline_s:g} s")

    def _write(self, file: tuple[Callable[[], Path], str, str | FactPage], dropped: int) -> bool:
        """Write one file. `dropped`: how many did not fit into the queue before it, because the disk hung."""
        if dropped:
            self._failed(f"{dropped} files", "the disk did not answer, and the queue was full")
        directory, name, content = file
        text = content if isinstance(content, str) else layout.plain(content)
        try:
            staging.write(str(directory() / name), f"{text}\n".encode(errors="backslashreplace"), is_durable=False)
        except (OSError, ValueError) as error:  # ValueError: a NUL in a name
            self._failed(name, getattr(error, "strerror", None) or str(error))
        return True  # handled, not dropped: `failed` has reported the error
