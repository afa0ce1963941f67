"""The progress of a command that takes long, on stderr: a bar on a terminal, elsewhere a plain line every 30 s. Never on stdout.

The bar comes after a second, so that a quick command shows nothing, and is gone when the work is over. A thread draws it: it moves on
where nothing is reported, as on a disk that does not answer. rich draws; work that is quickly done does not pay for its import.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Self

from checkpointing.io.progress_text import BYTES, SECONDS, left_text, progress_text, span_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress as Display

_DELAY_S: Final = 1.0
_LINE_EVERY_S: Final = 30.0
_FRAME_S: Final = 0.1
#: The rate is that of so many seconds; after so many without a report their number is in its place.
_RATE_OF_S: Final = 30.0
_SILENT_S: Final = 10.0
#: A terminal of fewer columns gets no bar, and of the amounts only the rest.
_WIDE: Final = 80

_shown: list[ProgressBar] = []


@contextlib.contextmanager
def room() -> Iterator[None]:
    """Take the drawing off the terminal while a line is printed there; it comes again below that line."""
    with contextlib.ExitStack() as stack:
        for progress in tuple(_shown):
            stack.enter_context(progress.hidden())
        yield


def path_name(path: str) -> str:
    """Return the last two parts of a path: a bar has no room for all of it, and the end says which one it is."""
    return "/".join(path.rstrip("/").split("/")[-2:])


def print_line(text: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"{text}\n")


class ProgressBar:
    """The progress of one command, a context manager. Any thread may report. Within another one it shows nothing.

    total: how much there is of `unit`, None where that is not known. wanted: False shows nothing. say: prints a plain line. clean: makes a
    name fit to be shown. beside_output: other processes print on this terminal, too, and a bar would be in their way: plain lines, and no
    thread, since they are forked; a report then prints the line that is due.
    """

    def __init__(  # noqa: PLR0913 -- the work, and how it is shown
        self,
        name: str = "",
        total: float | None = None,
        *,
        unit: str = BYTES,
        wanted: bool = True,
        beside_output: bool = False,
        say: Callable[[str], None] = print_line,
        clean: Callable[[str], str] = str,
    ) -> None:
        """Show nothing yet."""
        self._is_on, self._beside_output, self._say, self._clean = wanted, beside_output, say, clean
        self._is_bar = wanted and not beside_output and _is_terminal()
        self._lock, self._screen = threading.Lock(), threading.RLock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._display: Display | None = None
        self._due = time.monotonic() + (_DELAY_S if self._is_bar else _LINE_EVERY_S)
        self.begin(name, total, unit)

    def __enter__(self) -> Self:
        """Return the progress itself."""
        self._is_on = self._is_on and not _shown  # one at a time
        _shown.append(self)
        if self._is_on and not self._beside_output:
            self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Take the bar away."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        self._clear()
        _shown.remove(self)

    # the reports

    def begin(self, name: str, total: float | None = None, unit: str = BYTES, *, done: float = 0.0) -> None:
        """Continue with another thing, of which so much is done; "" is nothing to show."""
        now = time.monotonic()
        with self._lock:
            self._name, self._done, self._total, self._unit = name, done, total, unit
            self._began = self._reported = now
            self._points = deque([(now, done)])
        if not name:
            self._clear()
        self._look()

    def at(self, name: str, done: float, total: float | None = None, unit: str = BYTES) -> None:
        """Set the present work, and its amount."""
        if name == self._name:
            self.set(done, total)
        else:
            self.begin(name, total, unit, done=done)

    def set(self, done: float, total: float | None) -> None:
        """Set how much is done, and of how much."""
        with self._lock:
            self._reported = self._reported if done == self._done else time.monotonic()
            self._done, self._total = done, total
        self._look()

    def advance(self, count: float = 1) -> None:
        """Count more as done. A part that is read twice does not lead beyond the end."""
        with self._lock:
            done = self._done + count
            self._done = done if self._total is None else min(done, self._total)
            self._reported = time.monotonic()
        self._look()

    # the drawing

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Draw nothing meanwhile."""
        with self._screen:
            self._clear()
            yield

    def _look(self) -> None:
        if self._beside_output:
            self._show()

    def _follow(self) -> None:
        while not self._is_over.wait(_FRAME_S):
            self._show()

    def _show(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._points.append((now, self._done))
            while now - self._points[0][0] > _RATE_OF_S:
                self._points.popleft()
        if now < self._due or not self._name or not self._is_on:
            return
        if self._is_bar:
            self._draw(now)
        else:
            self._due = now + _LINE_EVERY_S
            self._say(f"{self._clean(self._name)}: {self._amounts(now)}")

    def _amounts(self, now: float, *, is_narrow: bool = False) -> str:
        """Return how far it is, in words."""
        with self._lock:
            done, total, unit, (begun, before) = self._done, self._total, self._unit, self._points[0]
            silent_s = now - self._reported
        if not done and (total is None or unit == SECONDS):
            return span_text(now - self._began)
        is_silent = unit != SECONDS and silent_s >= _SILENT_S
        rate = 0.0 if is_silent or now - begun < _DELAY_S else (done - before) / (now - begun)
        if is_narrow and total and unit != SECONDS:
            text = ", ".join(amount for amount in (f"{done / total:.0%}", left_text(done, total, rate)) if amount)
        else:
            text = progress_text(done, total, 0.0 if is_narrow else rate, unit)
        return f"{text}, nothing for {span_text(silent_s)}" if is_silent else text

    def _draw(self, now: float) -> None:
        name = self._clean(self._name)
        with self._screen:
            if not self._name or self._is_over.is_set():  # cleared meanwhile
                return
            try:
                self._display = display = self._display or _new_display()
                task = display.task_ids[0]
                amounts = self._amounts(now, is_narrow=display.console.width < _WIDE)
                display.update(task, description=name, completed=self._done, total=self._total or None, amounts=amounts)
                display.refresh()
            except (OSError, ValueError):  # nobody sees it any more: the work continues
                self._is_on, self._display = False, None

    def _clear(self) -> None:
        with self._screen:
            display, self._display = self._display, None
            if display is not None:
                with contextlib.suppress(OSError, ValueError):
                    display.stop()


def _is_terminal() -> bool:
    """Return whether lines can be drawn anew on stderr."""
    try:
        return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def _new_display() -> Display:
    from rich.console import Console  # noqa: PLC0415  heavy, and for long work on a terminal only
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    console = Console(stderr=True)
    name = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    amounts = TextColumn("{task.fields[amounts]}", markup=False, table_column=Column(no_wrap=True))
    columns = (SpinnerColumn(), name, *([BarColumn(bar_width=20)] if console.width >= _WIDE else []), amounts)
    # stdout is the command's own: it may go into a file
    display = Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False, expand=True, auto_refresh=False
    )
    display.add_task("", total=None, amounts="")
    display.start()
    console.show_cursor(True)  # noqa: FBT003  a process that is killed here leaves the terminal as it was
    return display
