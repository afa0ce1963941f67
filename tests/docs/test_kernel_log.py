"""The page about the kernel's log names every kind and code that can come out, and no other."""

from __future__ import annotations

import re

from health.kernellog.messages import Role, forms
from tests.support.pages import page_text

PAGE = page_text("kernel-log.md")
CELLS = [line.split("|")[1:3] for line in PAGE.partition("## Other kinds")[2].splitlines() if line.startswith("| `")]
ROWS = [(kind.strip(" `"), code) for kind, codes in CELLS for code in re.findall(r"`(\w+)`", codes)]
#: What the judge makes of a line's own words, and of several lines.
MADE = {("netdev", "flapping"), ("mlx5", "link_up"), ("apei", "corrected"), ("apei", "recoverable"), ("apei", "fatal")}


def test_every_form_is_documented_and_no_other() -> None:
    there = {(row.kind, row.code) for row in forms() if row.code not in {"", "severity"} and row.role is not Role.END}
    assert set(ROWS) - MADE == there - {("netdev", "lost_carrier")}
    assert len(ROWS) == len(set(ROWS))
