"""A module's constant has one value: a second assignment would change it for the code that was written for the first."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What may be an assignment to a constant, in a line that is not indented.
CONSTANT = re.compile(r"\b([A-Z_][A-Z0-9_]*)\s*(?:=(?!=)|:)")


def test_no_module_assigns_a_constant_twice() -> None:
    twice = []
    for package in ("supervisor", "checkpointing", "health"):
        for file in sorted((ROOT / package).rglob("*.py")):
            lines = "\n".join(line for line in file.read_text("utf-8").splitlines() if CONSTANT.match(line))
            if max(Counter(CONSTANT.findall(lines)).values(), default=0) < 2:
                continue  # to parse every file takes seconds
            names = Counter(
                target.id
                for node in ast.parse(file.read_bytes()).body
                if isinstance(node, ast.Assign | ast.AnnAssign)
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                if isinstance(target, ast.Name) and target.id.isupper() and target.id != "TYPE_CHECKING"
            )
            twice += [f"{file.relative_to(ROOT)}: {name}" for name, count in names.items() if count > 1]
    assert not twice
