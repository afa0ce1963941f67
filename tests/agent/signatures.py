"""Describes, from torch's sources, the names that supervisor/agent/selfcheck.py stands on; no torch is imported or installed.

    python tests/agent/signatures.py torch-2.15.0-….whl …     prints the contract of these wheels (any platform's: the files are Python)

For each row: `takes`, the arguments by name (fields of a dataclass), and `uses`, those of the row's `calls` that its code names.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.agent.selfcheck import TorchRequirement

ELASTIC = "torch/distributed/elastic"
#: Where a module's names are defined, if not in the file of its own name.
FILES = {
    "torch.distributed.elastic.multiprocessing.subprocess_handler": [f"{ELASTIC}/multiprocessing/subprocess_handler/subprocess_handler.py"],
    "torch.distributed.elastic.multiprocessing.api": [
        f"{ELASTIC}/multiprocessing/api.py",
        f"{ELASTIC}/multiprocessing/subprocess_handler/handlers.py",
    ],
}
BUILT_IN = "torch.distributed"  # the C++ core: in no source


def describe(rows: tuple[TorchRequirement, ...], read: Callable[[str], str]) -> dict[str, Any]:
    """Return the contract of one version: {"module:name": {"takes": [...], "uses": [...]} or None}. `read` gives a file's text."""
    signatures: dict[str, Any] = {}
    for row in rows:
        if row.module == BUILT_IN:
            continue
        paths = FILES.get(row.module, [row.module.replace(".", "/") + ".py"])
        facts = [f for f in (_facts(read(path), row) for path in paths) if f is not None]
        signatures[f"{row.module}:{row.name}"] = facts[0] if facts else None
    return signatures


def _facts(source: str, row: TorchRequirement) -> dict[str, Any] | None:
    node: ast.AST = ast.parse(source)
    for part in row.name.split("."):
        body = getattr(node, "body", [])
        named = [n for n in body if getattr(n, "name", None) == part or part in _targets(n)]
        if not named:
            return None
        node = named[-1]
    if isinstance(node, ast.ClassDef):
        init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        fields = [name for n in node.body if isinstance(n, ast.AnnAssign) for name in _targets(n)]
        return {"takes": _arguments(init) if init else fields, "uses": []}
    if isinstance(node, ast.FunctionDef):
        node.decorator_list = []
        names = _names(compile(ast.Module([node], []), "torch", "exec"))
        return {"takes": _arguments(node), "uses": [name for name in row.calls if name in names]}
    return {"takes": [], "uses": []}


def _targets(node: ast.AST) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [t.id for t in targets if isinstance(t, ast.Name)]


def _arguments(node: ast.FunctionDef) -> list[str]:
    a = node.args
    return [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs) if x.arg != "self"] + (["**"] if a.kwarg else [])


def _names(code: CodeType) -> set[str]:
    here = {*code.co_names, *code.co_varnames, *code.co_freevars}
    return here.union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def main() -> None:
    """Print the contract of the wheels named."""
    from supervisor.agent.selfcheck import ROWS  # noqa: PLC0415  the reader alone needs nothing of ours

    out = {}
    for name in sys.argv[1:]:
        with zipfile.ZipFile(name) as wheel:
            out[Path(name).name.split("-")[1]] = describe(ROWS, lambda path, wheel=wheel: wheel.read(path).decode())  # type: ignore[misc]  # a bound loop variable
    json.dump(out, sys.stdout, indent=1, sort_keys=True)
    print()  # noqa: T201  a script


if __name__ == "__main__":
    main()
