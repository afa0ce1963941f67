"""Finds in the source what a loop asks for again and again: a path, or a process. Pure.

A rank tells what the names in its functions hold (`_supervise_shim/values.py`). The innermost loop that its stack is in shows which of
them it polls: `while os.path.exists(self.lock): time.sleep(0.1)`. Nothing is run; what cannot be read from names and constants is passed
over.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: The value of a name: ("path", text) or ("process", pid).
Held = tuple[str, "str | int"]
#: In place of "path": the loop asks whether the file is there.
PRESENCE = "presence"
_ASKS_PRESENCE = frozenset({"exists", "isfile", "lexists", "isdir", "islink", "access", "is_file", "is_dir", "is_symlink"})
#: How the name of a file ends that processes lock each other out by.
_LOCK_ENDINGS = ("lock", ".lck", ".pid")
#: Functions that tell people something: what they are given is not what the loop waits for.
_TELLS = frozenset({"print", "debug", "info", "warning", "error", "exception", "log", "write", "warn"})
#: Functions that make a path of what they are given, which others ask for.
_MAKES_PATH = frozenset({"join", "Path", "str", "fspath"})
_LONGEST_SOURCE = 2_000_000


class HeldFrame(Struct, frozen=True):
    """The values in one function of the main thread."""

    file: str
    line: int
    function: str
    values: Mapping[str, Held]


def read(line: str) -> tuple[HeldFrame, ...]:
    """Return what a rank wrote, the innermost function first; none where the line is no such answer."""
    try:
        return tuple(HeldFrame(str(file), int(at), str(function), dict(values)) for file, at, function, values in ast.literal_eval(line))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ()


def polled(frames: Sequence[HeldFrame], source_of: Callable[[str], str]) -> tuple[Held, ...]:
    """Return what the innermost loop asks for, in the order in which it does; none where no loop names anything.

    A library may hide the question in another function (filelock). Then it is the innermost path that is called a lock, or whose name is.
    """
    for frame in frames:
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):  # text that is not Python, or nested too deeply
            asked = tuple(dict.fromkeys(_asked(frame, source_of(frame.file)[:_LONGEST_SOURCE])))
            if asked:
                return asked
    named = ((name, held) for frame in frames for name, held in frame.values.items() if held[0] == "path")
    locks = (held for name, held in named if "lock" in name or ("/" in str(held[1]) and str(held[1]).endswith(_LOCK_ENDINGS)))
    return tuple(itertools.islice(locks, 1))


def _asked(frame: HeldFrame, source: str) -> Iterator[Held]:
    loop = _loop_at(ast.parse(source), frame.line)
    if loop is None:
        return
    condition = loop.test if isinstance(loop, ast.While) else loop.iter
    calls = [node for block in (condition, *loop.body) for node in ast.walk(block) if isinstance(node, ast.Call)]
    for call, name in ((call, _name(call.func)) for call in calls if _name(call.func) not in _MAKES_PATH):
        receiver = (call.func.value,) if isinstance(call.func, ast.Attribute) else ()
        for expression in () if name in _TELLS else (*receiver, *call.args):
            held = _held(expression, frame.values)
            if held is None or (isinstance(expression, ast.Constant) and name not in {*_ASKS_PRESENCE, "open", "stat"}):
                continue
            yield (PRESENCE, held[1]) if held[0] == "path" and name in _ASKS_PRESENCE else held


def _loop_at(tree: ast.AST, line: int) -> ast.While | ast.For | None:
    """Return the innermost loop around a line, within the innermost function around it."""
    around = [node for node in ast.walk(tree) if getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", 0) or 0)]
    functions = [node.lineno for node in around if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))]
    begin = max(functions, default=0)
    loops = [node for node in around if isinstance(node, (ast.While, ast.For)) and node.lineno >= begin]
    return max(loops, key=lambda node: node.lineno, default=None)


def _held(node: ast.expr, values: Mapping[str, Held]) -> Held | None:
    """Return what an expression holds, by the names and constants in it."""
    if isinstance(node, ast.Name):
        return values.get(node.id)
    if isinstance(node, ast.Attribute):
        return values.get(f"{node.value.id}.{node.attr}") if isinstance(node.value, ast.Name) else None
    path = _path(node, values)
    return None if not path else ("path", path)


def _path(node: ast.expr, values: Mapping[str, Held]) -> str:
    """Return the path that an expression makes: "" for one that cannot be read."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        held = _held(node, values)
        return str(held[1]) if held is not None and held[0] == "path" else ""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Add)):
        parts = [_path(node.left, values), _path(node.right, values)]
        return ("/" if isinstance(node.op, ast.Div) else "").join(parts) if all(parts) else ""
    if isinstance(node, ast.JoinedStr):
        parts = [_path(node_part.value if isinstance(node_part, ast.FormattedValue) else node_part, values) for node_part in node.values]
        return "".join(parts) if all(parts) else ""
    if isinstance(node, ast.Call) and _name(node.func) in _MAKES_PATH and node.args:
        parts = [_path(node_part, values) for node_part in node.args]
        return os.path.join(*parts) if all(parts) else ""  # noqa: PTH118 - text
    return ""


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
