"""Puts a generated table between its markers in a page of the documentation.

<!-- NAME: written by bench/SCRIPT.py -->
...
<!-- end of NAME -->

A link in a table names the page alone, as in `hangs.md#what-is-done`; the page that the table stands in gets the path to it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[1] / "docs"


def find_page(name: str) -> Path:
    """Return the page of this name, in whatever folder of the documentation it is."""
    found = list(DOCS.rglob(name))
    if len(found) != 1:
        raise SystemExit(f"{len(found)} pages are called {name}")
    return found[0]


def replace_table(path: Path, page: str, name: str, table: str) -> str:
    """Return `page`, the text of `path`, with a new table between the markers of this name. Exits unless there is one such pair."""

    def linked(match: re.Match[str]) -> str:
        return f"]({os.path.relpath(find_page(match[1]), path.parent)}"

    table = re.sub(r"\]\(([\w-]+\.md)(?=[#)])", linked, table)
    text, count = re.subn(
        rf"(<!-- {re.escape(name)}: written by bench/[a-z]+\.py -->\n).*?(<!-- end of {re.escape(name)} -->)",
        lambda match: f"{match[1]}\n{table}\n\n{match[2]}",
        page,
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(f"the markers of {name} stand {count} times in {path.name}")
    return text
