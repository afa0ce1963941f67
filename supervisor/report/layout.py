"""Lays labelled facts out for a person: at a terminal of 40 to 200 columns, in a pipe, in a file. Rich wraps and colours.

A page is data (`FactPage`); the modules that make one are pure. This module alone knows widths and colours. Rich is imported only when a
page is rendered: it costs 3 MiB and 30 ms. Nothing is cut here but foreign text of more than 1000 characters (`clean`): a fact that is too
long for its line goes on in the next one. A fact that is there to be copied (a command, a path) is one line whatever its length, so that
the terminal itself wraps it.
"""

from __future__ import annotations

import io
import os
from enum import StrEnum
from typing import TYPE_CHECKING

from supervisor.core.values import Struct
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

#: Columns: the least and the most that a page uses, and those of a pipe or a file.
NARROWEST, WIDEST, UNKNOWN_WIDTH = 40, 200, 100
#: In fewer columns than this a label stands above its text.
_BESIDE = 60
_INDENT = "  "
_LABEL_STYLE = "cyan"


class Tone(StrEnum):
    """How a fact reads: in colour where there is any. The value is rich's style."""

    PLAIN = "none"
    STRONG = "bold"
    GOOD = "green"
    WARNING = "yellow"
    BAD = "bold red"
    FAINT = "dim"


class Fact(Struct, frozen=True):
    """One fact under its label. A label of "" goes on under the one before. copied: a command or a path, which is never wrapped."""

    label: str
    text: str
    tone: Tone = Tone.PLAIN
    copied: bool = False


class FactPage(Struct, frozen=True):
    """What a card, `why`, `status` or `classify` shows. Texts may hold anything: they are cleaned here, each into one line."""

    title: str
    facts: tuple[Fact, ...]
    tone: Tone = Tone.STRONG


class Surface(Struct, frozen=True):
    """What a page is laid out for."""

    width: int = UNKNOWN_WIDTH
    colour: bool = False


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
    width = int(columns) if columns.isdecimal() and int(columns) else 0
    if not width and is_terminal:
        try:
            width = os.get_terminal_size(fd).columns
        except OSError:
            width = 0
    return Surface(max(NARROWEST, min(width or UNKNOWN_WIDTH, WIDEST)), colour)


def plain(page: FactPage) -> str:
    """Return the page for a file: a line for each fact, whatever its length. Rich is not needed, and its memory not taken."""
    width = max((len(fact.label) for fact in page.facts), default=0) + len(_INDENT)
    return "\n".join(
        [f"-- {clean(page.title)}", *(f"{_INDENT}{fact.label:<{width}}{clean(fact.text, is_whole=fact.copied)}" for fact in page.facts)]
    )


def render(page: FactPage, surface: Surface = Surface()) -> str:
    """Return the page as text, without a line feed at its end."""
    try:
        from rich.console import Console  # noqa: PLC0415  heavy, and for people only
        from rich.text import Text  # noqa: PLC0415
    except ImportError:  # the installation was replaced while a job ran: its card must not be lost
        return plain(page)
    console = Console(
        file=io.StringIO(),
        width=surface.width,
        color_system="standard" if surface.colour else None,
        force_terminal=surface.colour,
        no_color=not surface.colour,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
        _environ={},  # what holds of COLUMNS and NO_COLOR is in `surface`
    )

    def folded(text: Text, width: int) -> list[Text]:
        lines = list(text.wrap(console, width, overflow="fold")) or [text]
        for line in lines:
            line.rstrip()
        return lines

    title = Text(f"-- {clean(page.title)}", style=page.tone.value)
    rule = surface.width - title.cell_len - 1
    lines = [Text.assemble(title, " ", ("-" * rule, Tone.FAINT.value))] if rule > 0 else folded(title, surface.width)
    is_beside = surface.width >= _BESIDE
    label_width = max((len(fact.label) for fact in page.facts), default=0) + len(_INDENT) if is_beside else 0
    indent = len(_INDENT) + label_width
    for fact in page.facts:
        text = Text(clean(fact.text, is_whole=fact.copied), style=fact.tone.value)
        label = Text(fact.label, style=_LABEL_STYLE)
        if fact.label and not is_beside:
            lines.append(label)
        for number, part in enumerate([text] if fact.copied else folded(text, surface.width - indent)):
            before = label if is_beside and number == 0 else Text()
            before.align("left", label_width)
            lines.append(Text.assemble(_INDENT, before, part))
    with console.capture() as captured:
        for line in lines:
            console.print(line, soft_wrap=True)
    return captured.get().removesuffix("\n")
