"""The check of words: what it counts, and that its table may only fall. And the glossary: one row a term, one sentence a row."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SPEC = importlib.util.spec_from_file_location("words", HERE / "words.py")
assert SPEC is not None
assert SPEC.loader is not None
words = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(words)
GLOSSARY = (HERE.parents[1] / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in GLOSSARY.splitlines() if line.startswith("|")]
TERMS = [row for row in ROWS if row[0] != "term" and not row[0].startswith("-")]


def test_a_public_class_name_of_two_packages_is_repeated_and_a_private_one_is_not() -> None:
    found = {"a": {"a.py": "class Row: ...\nclass _Own: ..."}, "b": {"b.py": "class Row: ...\nclass _Own: ...\nclass Alone: ..."}}
    assert words.repeated(found) == {"Row": 2}


@pytest.mark.parametrize(("text", "count"), [("was_told = said", 2), ("untold", 1), ("retold, afterwards, Harmed", 0), ("ARMED", 1)])
def test_a_replaced_word_counts_in_a_name_and_in_a_sentence(text: str, count: int) -> None:
    assert words.counted({"a": {"a.py": text}}) == {"a": count}


def test_a_count_may_only_fall() -> None:
    assert words.grown({"Row": 3, "New": 2, "Old": 1}, {"Row": 2, "Old": 4}, 1) == ["Row: 3, allowed 2", "New: 2, allowed 1"]
    assert words.lowered({"Row": 3, "Old": 1}, {"Row": 2, "Old": 4, "Gone": 2}) == {"Row": 2, "Old": 1}


def test_a_term_has_one_row_and_a_meaning_of_one_sentence() -> None:
    assert all(len(row) == 3 for row in TERMS)
    assert len({row[0] for row in TERMS}) == len(TERMS)
    assert [row[0] for row in TERMS if not row[1].endswith(".") or len(re.findall(r"\w+", row[1])) > 25] == []
