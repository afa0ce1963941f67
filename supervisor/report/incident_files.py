"""Writes the small files of an incident, in order. Each file is whole or not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpointing.io import staging
from supervisor.report.background_writer import BackgroundWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class IncidentFiles:
    """One writer of small files. Every loss is reported by a call of `failed`."""

    def __init__(self, failed: Callable[[str, str], None]) -> None:
        """Start the thread. `failed(what, cause)` is called in any thread; `what` is a file's name, or how many files."""
        self._failed = failed
        self._writer: BackgroundWriter[tuple[Callable[[], Path], str, str]] = BackgroundWriter("incident-files", self._write)

    def write_soon(self, directory: Callable[[], Path], name: str, text: str) -> None:
        """Queue `text` for `directory()/name`. `directory` is called on the writer's thread, because it may wait for a disk."""
        self._writer.put((directory, name, text))

    def close(self, deadline_s: float) -> None:
        """Wait until all is written, at most `deadline_s`."""
        if not self._writer.close(deadline_s):
            self._failed("the last files", f"the disk did not answer within {deadline_s:g} s")

    def _write(self, file: tuple[Callable[[], Path], str, str], dropped: int) -> bool:
        """Write one file. `dropped`: how many did not fit into the queue before it, because the disk hung."""
        if dropped:
            self._failed(f"{dropped} files", "the disk did not answer, and the queue was full")
        directory, name, text = file
        try:
            staging.write(str(directory() / name), f"{text}\n".encode(errors="backslashreplace"), is_durable=False)
        except (OSError, ValueError) as error:  # ValueError: a NUL in a name
            self._failed(name, getattr(error, "strerror", None) or str(error))
        return True  # handled, not dropped: `failed` has reported the error
