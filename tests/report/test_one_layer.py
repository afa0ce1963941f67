"""Layout, dates and counts of what people read come from one place each: no command pads, folds, or writes a time or bytes by itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "supervisor"
#: By idea: what it looks like, and the files that may; names of runs and of bundles have a time in UTC in them.
IDEAS = {
    "a local time": (r"\blocaltime\(|\bastimezone\(", {"job/local_time.py"}),
    "a form of a time": (r"\bstrftime\(", {"job/local_time.py", "job/identity.py", "cli/bundle/command.py", "report/html/charts.py"}),
    "an amount of bytes": (r"\{[^{}]*(?:/|>>) ?\(?(?:1 << [1-4]0|2\*\*[1-4]0|[1-4]0|1024|1e6|1e9|_[KMG]I?B)\)?(?::\S+)?\}", set[str]()),
    "a table": (r"from rich\.table import (?!Column)|\w:[<>]\{|:[<>]\d+\}|\.[lr]just\((?:width|max)", {"report/layout.py"}),
    "folding": (r"\btextwrap\b|\.wrap\(", {"report/layout.py"}),
}


@pytest.mark.parametrize("idea", IDEAS)
def test_an_idea_stands_in_one_place(idea: str) -> None:
    pattern, places = IDEAS[idea]
    assert {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if re.search(pattern, path.read_text("utf-8"))} <= places


@pytest.mark.parametrize(
    ("idea", "code"),
    [
        ("a local time", "time.strftime('%H:%M', time.localtime(t))"),
        ("an amount of bytes", 'f"{len(content) / 1024:.0f} KiB"'),
        ("an amount of bytes", 'f"{count >> 20} MiB"'),
        ("an amount of bytes", 'f"{n / 2**30:.2f} GiB left"'),
        ("a table", 'f"{cell:<{width}}"'),
        ("a table", 'f"{name:<11}"'),
        ("a table", "cell.ljust(width)"),
        ("folding", "textwrap.wrap(text, 80)"),
    ],
)
def test_an_idea_is_seen_where_it_stands_a_second_time(idea: str, code: str) -> None:
    assert re.search(IDEAS[idea][0], code)
