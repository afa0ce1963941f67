"""Writes the small files of an incident, in order. Each file is whole or not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpointing.io import staging
from supervisor.report.background_writer import BackgroundWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class IncidentFiles:
    """One writer of small files."""

    def __init__(self, failed: Callable[[str, str], None]) -> None:
        """Start the thread. `failed(name, cause)` is called in it."""
        self._failed = failed
        self._writer: BackgroundWriter[tuple[Callable[[], Path], str, str]] = BackgroundWriter("incident-files", self._write)

    def keep(self, directory: Callable[[], Path], name: str, text: str) -> None:
        """Have `text` written to `directory()/name`; returns at once."""
        self._writer.put((directory, name, text))

    def close(self, deadline_s: float) -> None:
        """Wait until all is written, at most `deadline_s`."""
        self._writer.close(deadline_s)

    def _write(self, file: tuple[Callable[[], Path], str, str], _dropped: int) -> bool:
        directory, name, text = file
        try:
            staging.write(str(directory() / name), f"{text}\n".encode(errors="backslashreplace"), is_durable=False)
        except OSError as error:
            self._failed(name, error.strerror or str(error))
        return True
