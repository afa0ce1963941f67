"""The glossary: one row a term, one sentence a row."""

from __future__ import annotations

import re

from tests.support.pages import page_text

ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in page_text("glossary.md").splitlines() if line.startswith("|")]
TERMS = [row for row in ROWS if row[0] != "term" and not row[0].startswith("-")]


def test_a_term_has_one_row_and_a_meaning_of_one_sentence() -> None:
    assert all(len(row) == 3 for row in TERMS)
    assert len({row[0] for row in TERMS}) == len(TERMS)
    assert [row[0] for row in TERMS if not row[1].endswith(".") or len(re.findall(r"\w+", row[1])) > 25] == []
