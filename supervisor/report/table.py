"""Lays rows and columns out for a person: at a terminal of 40 to 200 columns, in a pipe, in a file.

A table is data; this module alone knows widths. A row that does not fit its line continues in the next one, in its own column; where not
even the longest words fit, each row becomes lines of label and text. In a pipe each row is one line, aligned. A cell's tone never says what
its text does not say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.core.values import Struct
from supervisor.report.layout import FactPage, Surface, Tone, folded, heading, painted, render, width_of
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_GAP: Final = "  "
_HEAD_TONE: Final = Tone.LABEL
#: A column of words is folded to no less than this and its longest word, unless that is longer than half a line.
_NARROWEST_COLUMN: Final = 12


class Column(Struct, frozen=True):
    """The head of a column. right: numbers, which end below each other. copied: commands or paths, which are never folded."""

    name: str
    right: bool = False
    copied: bool = False


class Cell(Struct, frozen=True):
    """A text with a tone. It may hold anything: it is cleaned here, into one line."""

    text: str
    tone: Tone = Tone.PLAIN


class Table(Struct, frozen=True):
    """Rows of as many cells as there are columns. empty: the text where there is no row. title: "" for none."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell | str, ...], ...]
    title: str = ""
    empty: str = ""


def drawn(shown: Iterable[FactPage | Table], surface: Surface) -> str:
    """Return pages and tables below each other, with an empty line between two."""
    texts = (render(each, surface) if isinstance(each, FactPage) else render_table(each, surface) for each in shown)
    return "\n\n".join(filter(None, texts))


def render_table(table: Table, surface: Surface = Surface()) -> str:
    """Return the table as text, without a line feed at its end; an empty column is left out."""
    lines = heading(table.title, Tone.STRONG, surface) if table.title else []
    if not table.rows:
        return "\n".join([*lines, *(folded(table.empty, surface.width) if table.empty else [])])
    cleaned: dict[str, str] = {}  # most cells of a long table say what others say
    rows = [tuple(_cleaned(cell, cleaned, column) for cell, column in zip(row, table.columns, strict=True)) for row in table.rows]
    kept = [at for at in range(len(table.columns)) if any(row[at].text for row in rows)]
    columns = [table.columns[at] for at in kept]
    rows = [tuple(row[at] for at in kept) for row in rows]
    widths = _widths(columns, rows, surface)
    if widths is None:
        return "\n".join([*lines, *_as_labels(columns, rows, surface)])
    head = tuple(Cell(column.name, _HEAD_TONE) for column in columns)
    for row in (head, *rows):
        lines += _row_lines(columns, row, widths, surface)
    return "\n".join(lines)


def _cleaned(cell: Cell | str, cleaned: dict[str, str], column: Column) -> Cell:
    text = cell if isinstance(cell, str) else cell.text
    if text not in cleaned:
        cleaned[text] = clean(text, is_whole=column.copied)
    return Cell(cleaned[text], Tone.PLAIN if isinstance(cell, str) else cell.tone)


def _widths(columns: Sequence[Column], rows: Sequence[tuple[Cell, ...]], surface: Surface) -> list[int] | None:
    """Return the width of each column in cells; None where the surface has too few for them.

    The widest is folded first. A last column that is copied may run over the edge: the terminal wraps it.
    """
    widths = [max(width_of(column.name), *(width_of(row[at].text) for row in rows)) for at, column in enumerate(columns)]
    if not surface.folds:
        return widths
    longest_words = [max(width_of(word) for row in rows for word in (row[at].text.split() or [""])) for at in range(len(columns))]
    least = [
        width
        if column.copied or column.right
        else min(width, max(width_of(column.name), _NARROWEST_COLUMN, min(longest_words[at], surface.width // 2)))
        for at, (column, width) in enumerate(zip(columns, widths, strict=True))
    ]
    if columns[-1].copied:
        widths[-1] = least[-1] = min(widths[-1], _NARROWEST_COLUMN)
    room = surface.width - len(_GAP) * (len(columns) - 1)
    if sum(least) > room:
        return None
    while (over := sum(widths) - room) > 0:
        foldable = [at for at, width in enumerate(widths) if width > least[at]]
        widest = max(foldable, key=lambda at: widths[at])
        others = [widths[at] for at in foldable if widths[at] < widths[widest]]
        widths[widest] -= max(1, min(over, widths[widest] - max(least[widest], max(others, default=0))))
    return widths


def _row_lines(columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int], surface: Surface) -> list[str]:
    parts = [
        [cell.text] if column.copied or not surface.folds else folded(cell.text, width)
        for column, cell, width in zip(columns, row, widths, strict=True)
    ]
    lines = []
    for number in range(max(len(cell_lines) for cell_lines in parts)):
        line, blanks = "", 0  # blanks: not yet written, as none stand at the end of a line
        for at, (column, cell, width) in enumerate(zip(columns, row, widths, strict=True)):
            text = parts[at][number] if number < len(parts[at]) else ""
            rest = max(0, width - width_of(text))
            if text:
                line += " " * (blanks + (rest if column.right else 0)) + painted(text, cell.tone, surface)
                blanks = 0
            blanks += len(_GAP) + (rest if not text or not column.right else 0)
        lines.append(line)
    return lines


def _as_labels(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], surface: Surface) -> list[str]:
    """Return the lines of each row: its first cell after the name of its column, and the others likewise, indented."""
    label_width = max((width_of(column.name) for column in columns[1:]), default=0)
    lines: list[str] = []
    for row in rows:
        for at, (column, cell) in enumerate(zip(columns, row, strict=True)):
            if at and not cell.text:
                continue
            indent, width = (_GAP, label_width) if at else ("", width_of(column.name))
            gap = _GAP if width else ""
            tone = Tone.STRONG if not at and cell.tone is Tone.PLAIN else cell.tone
            room = surface.width - len(indent) - width - len(gap)
            for number, line in enumerate([cell.text] if column.copied else folded(cell.text, room)):
                label = column.name if number == 0 else ""
                blanks = " " * (width - width_of(label)) + gap
                lines.append(indent + painted(label, _HEAD_TONE, surface) + blanks + painted(line, tone, surface))
    return lines
