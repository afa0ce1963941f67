"""Shows a page again and again in its place, until its subject is over or a person presses Ctrl-C."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import shutil
import signal
import sys
import time
from bisect import bisect_right
from typing import TYPE_CHECKING

from supervisor.cli import stdio

if TYPE_CHECKING:
    from collections.abc import Callable

#: A page is made this often, or in a tenth of the time where that takes long.
WATCH_S = 2.0
#: In place of the lines that do not fit.
_MORE = "({} more lines: `supervise status` shows all)"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def watch(page: Callable[[], tuple[str, bool]], *, in_place: bool) -> None:
    """Write the page that `page` returns, with whether it may change, until it may not. Ctrl-C ends it too.

    in_place: on a terminal, where a page takes the place of the one before, and one of another size at once. Else they follow each other.
    """
    is_terminal = in_place and sys.stdout.isatty()
    resized, signalled = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # an Event's lock may be held by the very thread that the signal interrupts
    before = signal.signal(signal.SIGWINCH, lambda *_: _tell(signalled)) if is_terminal else None
    try:
        while True:
            began = time.monotonic()
            with contextlib.suppress(BlockingIOError):
                os.read(resized, 4096)
            text, changes = page()
            stdio.write(sys.stdout, screenful(text, whole=not changes) if is_terminal else text)
            if not changes:
                return
            select.select([resized], [], [], max(WATCH_S, 10 * (time.monotonic() - began)))
    except KeyboardInterrupt:
        if is_terminal:
            stdio.write(sys.stdout, "")  # after the ^C that the terminal shows
    finally:
        if before is not None:
            signal.signal(signal.SIGWINCH, before)
        os.close(resized)
        os.close(signalled)


def _tell(signalled: int) -> None:
    with contextlib.suppress(BlockingIOError):  # full: the page is drawn anew anyway
        os.write(signalled, b"\0")


def screenful(text: str, *, whole: bool) -> str:
    """Return the text in the place of what the terminal shows, with as many of its lines as fit unless `whole`.

    Each line is overwritten and the rest of the screen erased, so that nothing flickers, and the terminal's modes stay as they are.
    """
    size = shutil.get_terminal_size()
    lines, rows = text.split("\n"), size.lines - 1  # the cursor's line stays free
    ends = list(itertools.accumulate(rows_of(line, size.columns) for line in lines))
    if not whole and ends[-1] > rows:
        shown = max(1, bisect_right(ends, rows - rows_of(_MORE.format(len(lines)), size.columns)))
        lines = [*lines[:shown], _MORE.format(len(lines) - shown)]
    return "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines[:-1]) + f"{lines[-1]}\x1b[K\x1b[J"


def rows_of(line: str, columns: int) -> int:
    """Return how many rows of a terminal a line takes. A wide character (中, 🔥) takes two cells, and is never parted."""
    text = _COLOUR.sub("", line)
    if text.isascii():
        return max(1, -(-len(text) // columns))
    from rich.cells import get_character_cell_size  # noqa: PLC0415  for a terminal only

    rows, used = 1, 0
    for cells in map(get_character_cell_size, text):
        if used + cells > columns:
            rows, used = rows + 1, 0
        used += cells
    return rows
