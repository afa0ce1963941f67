"""Foreign text made fit for one line of a terminal, and rows of it laid out on a page of a fixed width."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from supervisor.classify import redact
from supervisor.classify.logs.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: The widest line; cards are printed with "supervise: " before each line.
WIDTH = 100


#: Rows with the decision and what to do: they get lines first, before all evidence but its first line.
WHOLE_ROWS = frozenset({"done", "plan", "verdict", "next", "next time", "alerts"})


_LONGEST = 1000


def clean(text: str) -> str:
    """Return one line of foreign text, fit to be shown: no escape sequences, no control characters, no secrets."""
    return cut(redact.text(one_line(text)), _LONGEST)


def laid_out(  # noqa: PLR0913 (what is laid out, and the four measures of a page)
    head: str, rows: Sequence[tuple[str, str, str]], width: int, most: int, *, label_width: int, folds: Callable[[str], int | None]
) -> str:
    """Return the heading and the rows (label, what stands before the text, text), `most` lines where nothing is to be copied.

    `folds`: into how many more lines a row of this label may fold while there are any left; None where it is neither folded nor cut.
    """
    lines = [cut(f"-- {clean(head)} ", width).ljust(width, "-")]
    spare, wanted = most - 1 - len(rows), [more_lines(row, width - 2 - label_width, folds) for row in rows]
    folded = [0] * len(rows)
    for first in (True, False):  # what was decided and what to do, then the rest, from above
        for n in (n for n, (label, _, _) in enumerate(rows) if (label in WHOLE_ROWS) is first):
            folded[n] = max(0, min(wanted[n], spare))
            spare -= folded[n]
    for (label, before, text), lines_more in zip(rows, folded, strict=True):
        room = width - 2 - label_width - len(before)
        shown = [text] if folds(label) is None else _folded(text, room, lines_more)
        blank = " " * len(before)
        lines += [f"  {label if i == 0 else '':<{label_width}}{blank if i else before}{part}" for i, part in enumerate(shown)]
    return "\n".join(line.rstrip() for line in lines)


def more_lines(row: tuple[str, str, str], width: int, folds: Callable[[str], int | None]) -> int:
    """Return into how many more lines a row would fold."""
    label, before, text = row
    return min(len(_wrapped(text, width - len(before))) - 1, folds(label) or 0)


def _wrapped(text: str, room: int) -> list[str]:
    return textwrap.wrap(text, room, break_on_hyphens=False) or [""]


def _folded(text: str, room: int, more: int) -> list[str]:
    """Return the text in `more` lines and a last one, which is cut where it is too long. No character is added within a word."""
    shown, at = [], 0
    for part in _wrapped(text, room)[:more]:
        at = text.index(part, at) + len(part)
        shown.append(part)
    return [*shown, cut(text[at:].strip(), room)]


def cut(line: str, width: int) -> str:
    """Shorten in the middle: the beginning shows the kind, and the end of a path or a message which one."""
    if len(line) <= width:
        return line
    tail = width // 3
    return f"{line[: width - tail - 5]} ... {line[-tail:]}"
