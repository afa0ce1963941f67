"""Every child of the supervisor has a known owner: the reaper of adopted orphans would take its exit status otherwise."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "supervisor"
#: Other processes than the supervisor's own, and commands that run no job.
ELSEWHERE = ("agent/", "guardian/", "instrument/", "cli/checkpoints/convert.py", "cli/doctor/nodes.py", "cli/systemd/command.py")
STARTS = {f"subprocess.{name}" for name in ("Popen", "run", "call", "check_call", "check_output")}


def starts(tree: ast.AST) -> set[int]:
    """Return the lines of the calls that start a process."""
    return {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) in STARTS}


def owned(tree: ast.Module) -> set[int]:
    """Return those of them that are handed to ownership.started: as a lambda, or as a function of that file."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    handed = [node.args[0] for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "ownership.started"]
    return set().union(*(starts(functions[function.id] if isinstance(function, ast.Name) else function) for function in handed))


def test_each_process_that_the_supervisor_starts_is_known_to_the_reaper() -> None:
    trees = {
        file.relative_to(ROOT).as_posix(): ast.parse(text)
        for file in ROOT.rglob("*.py")
        if "subprocess" in (text := file.read_text()) and not file.relative_to(ROOT).as_posix().startswith(ELSEWHERE)
    }
    children = {(name, line) for name, tree in trees.items() for line in starts(tree)}
    assert len(children) >= 5
    assert children == {(name, line) for name, tree in trees.items() for line in owned(tree)}
