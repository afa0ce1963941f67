"""Lays labelled facts out for a person: at a terminal of 40 to 200 columns, in a pipe, in a file. Rich wraps.

A page is data (`FactPage`); the modules that make one are pure. This module alone knows widths and colours. Rich is imported only where a
text is folded: it costs 3 MiB and 30 ms. Nothing is cut here but foreign text of more than 1000 characters (`clean`): a fact
that is too long for its line continues in the next one. A fact that is there to be copied (a command, a path) is one line whatever its
length, so that the terminal itself wraps it.
"""

from __future__ import annotations

import functools
import os
from enum import StrEnum
from typing import TYPE_CHECKING

from supervisor.core.values import Struct
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from rich.console import Console

#: Columns: the least and the most that a page uses, and those of a pipe or a file.
NARROWEST, WIDEST, UNKNOWN_WIDTH = 40, 200, 100
#: In fewer columns than this a label is above its text.
_BESIDE = 60
_INDENT = "  "
#: COLUMNS with more digits is not a width. Python refuses to read thousands of them.
_DIGITS = 9


class Tone(StrEnum):
    """How a text reads: in colour where there is any. The value is ECMA-48's SGR parameter, which every terminal knows."""

    PLAIN = ""
    STRONG = "1"
    GOOD = "32"
    WARNING = "33"
    BAD = "1;31"
    FAINT = "2"
    NEWS = "1;36"
    LABEL = "36"


class Fact(Struct, frozen=True):
    """One fact under its label. A label of "" continues under the one before. copied: a command or a path, which is never wrapped."""

    label: str
    text: str
    tone: Tone = Tone.PLAIN
    copied: bool = False


class FactPage(Struct, frozen=True):
    """A page of a card, `why`, `status` or `classify`. Texts may hold anything: they are cleaned here, each into one line."""

    title: str
    facts: tuple[Fact, ...]
    tone: Tone = Tone.STRONG


class Surface(Struct, frozen=True):
    """The medium of a page. folds: whether it has an edge. A pipe has none: a row of a table is one line there."""

    width: int = UNKNOWN_WIDTH
    colour: bool = False
    folds: bool = True


def surface_of(stream: TextIO | int, environ: Mapping[str, str] = os.environ) -> Surface:
    """Return the width and the colour of a stream or descriptor: a terminal's own, else COLUMNS or 100 without colour.

    NO_COLOR, not empty, means none (no-color.org), and so does a dumb terminal.
    """
    fd = stream if isinstance(stream, int) else -1
    try:
        fd = stream if isinstance(stream, int) else stream.fileno()
        is_terminal = os.isatty(fd)
    except (OSError, ValueError, AttributeError):  # closed, or none at all
        is_terminal = False
    colour = is_terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    columns = environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and len(columns) <= _DIGITS else 0
    if not width and is_terminal:
        try:
            width = os.get_terminal_size(fd).columns
        except OSError:
            width = 0
    return Surface(max(NARROWEST, min(width or UNKNOWN_WIDTH, WIDEST)), colour, folds=bool(width))


def plain(page: FactPage) -> str:
    """Return the page for a file: a line for each fact, whatever its length. Rich is not needed, and its memory not taken."""
    width = max((len(fact.label) for fact in page.facts), default=0) + len(_INDENT)
    return "\n".join(
        [f"-- {clean(page.title)}", *(f"{_INDENT}{fact.label:<{width}}{clean(fact.text, is_whole=fact.copied)}" for fact in page.facts)]
    )


def painted(text: str, tone: Tone, surface: Surface) -> str:
    """Return a text in the colour of its tone, where the surface has colours."""
    return f"\x1b[{tone.value}m{text}\x1b[0m" if surface.colour and tone.value and text else text


def width_of(text: str) -> int:
    """Return how many cells of a terminal a text takes: 2 for 中 and most emoji, 0 for an accent that joins a letter."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415  heavy, and for people only

    return cell_len(text)


def folded(text: str, width: int) -> list[str]:
    """Return a text in lines of at most so many cells: between words, and within a word that is longer than a line."""
    if width_of(text) <= width:
        return [text]
    from rich.text import Text  # noqa: PLC0415  heavy, and for people only

    return [line.plain.rstrip() for line in Text(text).wrap(_console(), width, overflow="fold")]


@functools.cache
def _console() -> Console:
    """Return what rich folds a text for; nothing is printed there."""
    from rich.console import Console  # noqa: PLC0415  heavy, and for people only

    return Console(_environ={})


def heading(title: str, tone: Tone, surface: Surface) -> list[str]:
    """Return the first line of a page or a table: its title, and a rule to the edge."""
    text = f"-- {clean(title)}"
    rule = surface.width - width_of(text) - 1
    if rule <= 0:
        return [painted(line, tone, surface) for line in folded(text, surface.width)]
    return [f"{painted(text, tone, surface)} {painted('-' * rule, Tone.FAINT, surface)}"]


def render(page: FactPage, surface: Surface = Surface()) -> str:
    """Return the page as text, without a line feed at its end."""
    try:
        return _rendered(page, surface)
    except ImportError:  # the installation was replaced while a job ran: its card must not be lost
        return plain(page)


def _rendered(page: FactPage, surface: Surface) -> str:
    lines = heading(page.title, page.tone, surface)
    is_beside = surface.width >= _BESIDE
    label_width = max((len(fact.label) for fact in page.facts), default=0) + len(_INDENT) if is_beside else 0
    indent = len(_INDENT) + label_width
    for fact in page.facts:
        text = clean(fact.text, is_whole=fact.copied)
        if fact.label and not is_beside:
            lines.append(painted(fact.label, Tone.LABEL, surface))
        for number, line in enumerate([text] if fact.copied else folded(text, surface.width - indent)):
            label = fact.label if is_beside and number == 0 else ""
            blanks = " " * (label_width - len(label))
            lines.append(f"{_INDENT}{painted(label, Tone.LABEL, surface)}{blanks}{painted(line, fact.tone, surface)}")
    return "\n".join(lines)
