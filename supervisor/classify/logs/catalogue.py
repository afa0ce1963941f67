"""All signatures that are in use, indexed by their anchors.

A user's row with the id of a built-in row replaces it; any other second use of an id is a problem of the later row.
supervisor/config/signatures.py reads the files; this folder does no IO.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from supervisor.classify.logs import footers
from supervisor.classify.logs.rows import Problem, Signature, parse
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from supervisor.classify.logs.rows import Messages

#: Anchors of every catalogue beside those of its rows: where a traceback, an exception or a launcher's footer may stand.
STRUCTURE = (
    "Traceback (most recent call last",
    '", line ',
    "Error",
    "Exception",
    ".errors.",
    ".exceptions.",
    "KeyboardInterrupt",
    "--- Logging error",
    "closing signal",
    *footers.ANCHORS,
)


class Catalogue(Struct, frozen=True):
    """A scanner is built from `anchors`; `by_anchor[i]` are the positions in `rows` of those that name anchor i."""

    rows: tuple[Signature, ...]
    anchors: tuple[str, ...]
    by_anchor: tuple[tuple[int, ...], ...]

    def row(self, name: str) -> Signature | None:
        """Return the row with this id."""
        return next((row for row in self.rows if row.id == name), None)


def build(rows: Iterable[Signature]) -> Catalogue:
    """Return the catalogue of these rows, whose ids must differ."""
    kept = tuple(rows)
    index: dict[str, list[int]] = {anchor: [] for anchor in STRUCTURE}
    for number, row in enumerate(kept):
        for anchor in row.anchors:
            index.setdefault(anchor, []).append(number)
    return Catalogue(kept, tuple(index), tuple(tuple(numbers) for numbers in index.values()))


def load(
    own_files: Iterable[tuple[str, str]],
    users: Iterable[tuple[str, str]] = (),
    messages: Messages | None = None,
) -> tuple[Catalogue, tuple[Problem, ...]]:
    """Return the catalogue of TOML files, each given as (its name, its text), and all that is wrong in them.

    messages: the kernel messages that rows may name (rows.parse).
    """
    rows: dict[str, Signature] = {}
    problems: list[Problem] = []
    _take(own_files, rows, problems, partial(parse, messages=messages, tested=True))
    _take(users, rows, problems, partial(parse, messages=messages), frozenset(rows))
    return build(rows.values()), tuple(problems)


def _take(
    files: Iterable[tuple[str, str]],
    rows: dict[str, Signature],
    problems: list[Problem],
    read: Callable[[str, str], tuple[tuple[Signature, ...], tuple[Problem, ...]]],
    replaceable: frozenset[str] = frozenset(),
) -> None:
    taken: set[str] = set()
    for origin, text in files:
        parsed, wrong = read(text, origin)
        problems += wrong
        for row in parsed:
            if row.id in taken or (row.id in rows and row.id not in replaceable):
                problems.append(Problem(origin, row.id, f"its id is used by {rows[row.id].origin}"))
                continue
            taken.add(row.id)
            rows[row.id] = row
