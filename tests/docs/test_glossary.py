"""The glossary: one line a term, one sentence a line."""

from __future__ import annotations

import re

from tests.support.pages import page_text

TERMS = re.findall(r"^- \*\*(.+?)\*\*: (.+)$", page_text("glossary.md"), flags=re.MULTILINE)


def test_a_term_has_one_line_and_a_meaning_of_one_sentence() -> None:
    assert len(TERMS) > 50
    assert len(TERMS) == page_text("glossary.md").count("\n- ")
    assert len({term for term, _ in TERMS}) == len(TERMS)
    assert [term for term, meaning in TERMS if not meaning.endswith(".") or len(re.findall(r"\w+", meaning)) > 25] == []
