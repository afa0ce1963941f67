"""Writes the small files of an incident, in order, in its own thread, so that a hung disk delays nobody else.

Each file is whole or not there.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from checkpointing.io import staging

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Item = tuple[Callable[[], Path], str, str]


class IncidentFiles:
    """One writer of small files."""

    def __init__(self, failed: Callable[[str, str], None]) -> None:
        """Start the thread. `failed(name, cause)` is called in it."""
        self._failed = failed
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="incident-files", daemon=True)
        self._thread.start()

    def keep(self, directory: Callable[[], Path], name: str, text: str) -> None:
        """Have `text` written to `directory()/name`; returns at once."""
        self._queue.put((directory, name, text))

    def close(self, deadline_s: float) -> None:
        """Wait until all is written, at most `deadline_s`."""
        self._queue.put(None)
        self._thread.join(deadline_s)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            directory, name, text = item
            try:
                staging.write(str(directory() / name), f"{text}\n".encode(errors="backslashreplace"), is_durable=False)
            except OSError as error:
                self._failed(name, error.strerror or str(error))
