"""Puts a generated table between its markers in a page of the documentation.

<!-- NAME: written by bench/SCRIPT.py -->
...
<!-- end of NAME -->
"""

from __future__ import annotations

import re


def replace_table(page: str, name: str, table: str) -> str:
    """Return a page with the text between the markers of this name replaced. Exits if the page has not exactly one such pair."""
    text, count = re.subn(
        rf"(<!-- {re.escape(name)}: written by bench/[a-z]+\.py -->\n).*?(<!-- end of {re.escape(name)} -->)",
        lambda match: f"{match[1]}\n{table}\n\n{match[2]}",
        page,
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(f"the markers of {name} stand {count} times in the page")
    return text
