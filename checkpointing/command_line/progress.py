"""A progress bar for what takes long: on stderr, only on a terminal, and gone at the end.

rich draws it. Work that is quickly done shows none, and does not pay for the import.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_DELAY_S: Final = 0.3
#: A terminal of fewer columns gets no bar, rate and time, only the bytes.
_WIDE: Final = 70


def path_name(path: str) -> str:
    """Return the last two parts of a path: a bar has no room for all of it, and the end says which one it is."""
    return "/".join(path.rstrip("/").split("/")[-2:])


class ProgressBar:
    """The progress of one thing, in bytes; a context manager. Several threads may report to it.

    n_bytes: how many there are, None where that is not known. wanted: False shows nothing. In a pipe nothing is shown either.
    """

    def __init__(self, name: str, n_bytes: int | None = None, *, wanted: bool = True) -> None:
        """Show nothing yet."""
        self._name, self._total, self._done = name, n_bytes, 0
        self._is_on = wanted and sys.stderr is not None and sys.stderr.isatty()
        self._shows_from = time.monotonic() + _DELAY_S
        self._lock = threading.Lock()
        self._drawn: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        """Return the bar itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Take the bar away."""
        self.clear()

    def advance(self, n_bytes: int) -> None:
        """Count more bytes as done. What is read twice does not lead beyond the end."""
        if self._is_on:
            with self._lock:
                done = self._done + n_bytes
                self._done = done if self._total is None else min(done, self._total)
                self._draw()

    def set(self, done: int, total: int) -> None:
        """Set how many bytes are done, and of how many."""
        if self._is_on:
            with self._lock:
                self._done, self._total = done, total
                self._draw()

    def begin(self, name: str, n_bytes: int | None) -> None:
        """Go on with another thing, of which nothing is done."""
        self.clear()
        with self._lock:
            self._name, self._total, self._done = name, n_bytes, 0
            self._shows_from = time.monotonic() + _DELAY_S

    def clear(self) -> None:
        """Take the bar away. Later reports show it again."""
        with self._lock:
            drawn, self._drawn = self._drawn, None
        if drawn is not None:
            drawn[0].stop()

    def _draw(self) -> None:
        if self._drawn is None:
            if time.monotonic() < self._shows_from:
                return
            self._drawn = _new_display(self._name)
        progress, task = self._drawn
        progress.update(task, description=self._name, completed=self._done, total=self._total)


def _new_display(name: str) -> tuple[Progress, TaskID]:
    from rich.console import Console  # noqa: PLC0415  heavy, and for long work on a terminal only
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    console = Console(stderr=True)
    name_column = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    wide = (BarColumn(bar_width=20), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn(compact=True))
    progress = Progress(
        name_column,
        *(wide if console.width >= _WIDE else wide[1:2]),
        console=console,
        transient=True,
        redirect_stdout=False,  # what is printed there belongs to the command, and may go into a file
        expand=True,
    )
    task = progress.add_task(name, total=None)
    progress.start()
    return progress, task
