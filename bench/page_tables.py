"""Puts tables into pages of the documentation.

A table stands in no page of docs/: `<!-- table: NAME -->` marks its place, and `filled` puts it there when the site is built
(docs/conf.py). A table of the README, which is read as it is, or of a long simulation stands between the markers of its name, and its
script writes it anew:

<!-- NAME: written by bench/SCRIPT.py -->
...
<!-- end of NAME -->

A link in a table names the page alone, as in `hangs.md#what-is-done`; the page that the table is in gets the path to it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DOCS: Final = Path(__file__).parents[1] / "docs"


def find_page(name: str) -> Path:
    """Return the page of this name, in whatever folder of the documentation it is."""
    paths = list(DOCS.rglob(name))
    if len(paths) != 1:
        raise SystemExit(f"{len(paths)} pages are called {name}")
    return paths[0]


def filled(path: Path, page: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """Return `page`, the text of `path`, with each of `tables` in the place that is marked for it. Exits unless each has one such place."""
    places = re.findall(r"^<!-- table: (.+) -->$", page, re.MULTILINE)
    if sorted(places) != sorted(tables):
        raise SystemExit(f"{path.name} has places for the tables {sorted(places)}, and there are {sorted(tables)}")
    return re.sub(r"^<!-- table: (.+) -->$", lambda match: _linked(path, tables[match[1]]()), page, flags=re.MULTILINE)


def replace_table(path: Path, page: str, name: str, table: str) -> str:
    """Return `page`, the text of `path`, with a new table between the markers of this name. Exits unless there is one such pair."""
    table = _linked(path, table)
    text, count = re.subn(
        rf"(<!-- {re.escape(name)}: written by bench/[a-z]+\.py -->\n).*?(<!-- end of {re.escape(name)} -->)",
        lambda match: f"{match[1]}\n{table}\n\n{match[2]}",
        page,
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(f"the markers of {name} stand {count} times in {path.name}")
    return text


def _linked(path: Path, table: str) -> str:
    def link(match: re.Match[str]) -> str:
        return f"]({os.path.relpath(find_page(match[1]), path.parent)}"

    return re.sub(r"\]\(([\w-]+\.md)(?=[#)])", link, table)
