"""Reads a training script without running it: its imports and calls, its settings, its defaults.

The text is parsed, never executed. It does not show what happens at run time (an import by name, a setattr), so an absent name proves
nothing. A text that is not Python gives an empty result.
"""

from __future__ import annotations

import ast
from pathlib import Path

from supervisor.classify.source.script import MOST_BYTES, dotted, imports, tree_of
from supervisor.core.values import Struct, field


class ScriptText(Struct, frozen=True):
    """The findings in one script.

    used: dotted names as imported (`transformers.Trainer`), and `.name` of every attribute that is called; called: those that are called.
    executed: files of the script's own that it runs by exec(open(…).read()). sets: bare names that the script gives a value to (a keyword
    of a call, an attribute, a key of a dict, a field of a class), to the first line where it does; passing on a value of the same
    name (`batch_size=args.batch_size`) does not count. constants: whole numbers at the module's top level.
    keywords: whole numbers given by keyword in a call, None for a name that gets something else somewhere. divided: names with `//=`.
    datamodule: whole-number defaults of the parameters of its one LightningDataModule. shows: `.name` of every attribute that is read,
    `--option` of its argparse parsers, and `name=text` where a variable is compared with a text. options: the flags of its parsers
    (argparse, click) that take a value, to their default, None if that is not a whole number; switches: those that take none.
    """

    used: frozenset[str] = frozenset()
    called: frozenset[str] = frozenset()
    executed: frozenset[str] = frozenset()
    sets: dict[str, int] = field(default_factory=dict)
    constants: dict[str, int | None] = field(default_factory=dict)
    keywords: dict[str, int | None] = field(default_factory=dict)
    divided: frozenset[str] = frozenset()
    datamodule: dict[str, int] = field(default_factory=dict)
    shows: frozenset[str] = frozenset()
    options: dict[str, int | None] = field(default_factory=dict)
    switches: frozenset[str] = frozenset()


def read_script(path: Path) -> ScriptText:
    """Return the analysis of a file, empty if it cannot be read or is not Python. A pipe (/dev/fd/63) is left unread for the script."""
    try:
        if not path.is_file():
            return ScriptText()
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        return ScriptText() if len(data) > MOST_BYTES else parse(data)
    except OSError:
        return ScriptText()


def parse(source: str | bytes) -> ScriptText:
    """Return the analysis of a text."""
    try:
        tree = tree_of(source)
    except SyntaxError:
        return ScriptText()
    names = imports(tree)
    used: set[str] = set(names.values())
    called: set[str] = set()
    executed: set[str] = set()
    divided: set[str] = set()
    shows: set[str] = set()
    sets: dict[str, int] = {}
    keywords: dict[str, int | None] = {}
    options: dict[str, int | None] = {}
    switches: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (origin := dotted(node, names)) is not None:
            used.add(origin)
        if isinstance(node, ast.Call):
            called.add(dotted(node.func, names) or "")
            if isinstance(node.func, ast.Attribute):
                used.add(f".{node.func.attr}")
            if (file := _executed(node)) is not None:
                executed.add(file)
            flags, takes_value = _flags(node)
            options.update(dict.fromkeys(flags, _default(node)) if takes_value else {})
            switches.update(() if takes_value else flags)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.FloorDiv) and isinstance(node.target, ast.Name):
            divided.add(node.target.id)
        if isinstance(node, ast.keyword) and node.arg is not None:
            number = _number(node.value)
            keywords[node.arg] = number if keywords.get(node.arg, number) == number else None
        for name, line in _set_by(node):
            sets.setdefault(name, line)
        shows.update(_shown_by(node))
    facts = _constants(tree), keywords, frozenset(divided), _datamodule(tree, names), frozenset(shows), options, frozenset(switches)
    return ScriptText(frozenset(used), frozenset(called), frozenset(executed), sets, *facts)


def _executed(call: ast.Call) -> str | None:
    """Return X of exec(open("X").read())."""
    if not isinstance(call.func, ast.Name) or call.func.id != "exec" or not call.args:
        return None
    for node in ast.walk(call.args[0]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open" and node.args:
            file = node.args[0]
            if isinstance(file, ast.Constant) and isinstance(file.value, str):
                return Path(file.value).name
    return None


def _shown_by(node: ast.AST) -> list[str]:
    """Return what `shows` holds of this node."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return [f".{node.attr}"]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
        return _flags(node)[0]
    if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and isinstance(node.ops[0], ast.Eq):
        text = node.comparators[0]
        return [f"{node.left.id}={text.value}"] if isinstance(text, ast.Constant) and isinstance(text.value, str) else []
    return []


def _flags(call: ast.Call) -> tuple[list[str], bool]:
    """Return the flags that a call adds to a parser, the longest first, and whether they take a value."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in {"add_argument", "option"}:
        return [], False
    given = [argument.value for argument in call.args if isinstance(argument, ast.Constant) and isinstance(argument.value, str)]
    action = next((keyword.value for keyword in call.keywords if keyword.arg in {"action", "is_flag"}), None)
    return sorted((text for text in given if text.startswith("-")), key=len, reverse=True), action is None


def _default(call: ast.Call) -> int | None:
    return next((_number(keyword.value) for keyword in call.keywords if keyword.arg == "default"), None)


def _set_by(node: ast.AST) -> list[tuple[str, int]]:
    """Return the names that get a value here, and the line."""
    assignments: list[tuple[str, int, ast.expr | None]] = []
    if isinstance(node, ast.keyword) and node.arg is not None:
        assignments = [(node.arg, node.lineno, node.value)]
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        assignments = [(key.value, key.lineno, v) for key, v in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Attribute):
                assignments.append((target.attr, target.lineno, node.value))
            elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                assignments.append((str(target.slice.value), target.lineno, node.value))
    elif isinstance(node, ast.ClassDef):
        fields = (entry for entry in node.body if isinstance(entry, ast.AnnAssign))
        assignments = [(entry.target.id, entry.lineno, entry.value) for entry in fields if isinstance(entry.target, ast.Name)]
    return [(name, line) for name, line, value in assignments if value is None or not _passes_on(name, value)]


def _passes_on(name: str, value: ast.expr) -> bool:
    """Return whether the value already has this name: batch_size, args.batch_size, config["batch_size"]."""
    if isinstance(value, ast.Name):
        return value.id == name
    if isinstance(value, ast.Attribute):
        return value.attr == name
    return isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant) and value.slice.value == name


def _constants(tree: ast.Module) -> dict[str, int | None]:
    """Return the whole numbers at the top level, None for a name that gets something else. The last assignment counts."""
    constants: dict[str, int | None] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    constants[target.id] = _number(node.value)
    return constants


def _number(node: ast.expr | None) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):  # nanoGPT's own: gradient_accumulation_steps = 5 * 8
        left, right = _number(node.left), _number(node.right)
        return None if left is None or right is None else left * right
    return None


def _datamodule(tree: ast.Module, names: dict[str, str]) -> dict[str, int]:
    """Return the defaults of the only LightningDataModule's __init__; of several it is unknown which one is used."""
    classes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any((dotted(base, names) or "").rpartition(".")[2] == "LightningDataModule" for base in node.bases)
    ]
    if len(classes) != 1:
        return {}
    init = next((node for node in classes[0].body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)
    if init is None:
        return {}
    positional = [*init.args.posonlyargs, *init.args.args]
    pairs: list[tuple[ast.arg, ast.expr | None]] = list(
        zip(positional[len(positional) - len(init.args.defaults) :], init.args.defaults, strict=True)
    )
    pairs += list(zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True))
    return {arg.arg: number for arg, default in pairs if (number := _number(default)) is not None}
