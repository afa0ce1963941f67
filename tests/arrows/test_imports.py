"""Who may import whom, read from the sources: imports inside functions and under TYPE_CHECKING count as well."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGES = ("supervisor", "checkpointing", "health")
#: The vendor's catalogues and what an Xid that comes again means are health's, and as pure as what reads them.
PURE = (
    "supervisor.core",
    "supervisor.classify",
    "supervisor.strategies",
    "supervisor.knobs.batch",
    "supervisor.knobs.declaration",
    "supervisor.knobs.bindings",
    "health.nvidia.xids",
    "health.nvidia.sxids",
    "health.model",
    "health.thresholds",
)
# What can neither look at the world nor change it. Anything else that a pure module wants is to be asked for here, with a reason.
PURE_STANDARD_LIBRARY = frozenset(
    {
        "__future__",
        "ast",  # reads a script's text, and runs none of it (classify/source)
        "builtins",  # the names that every script has (classify/source/collectives.py)
        "string",
        "base64",
        "binascii",
        "bisect",
        "collections",
        "dataclasses",
        "datetime",  # writes a moment that it is given: see test_no_pure_module_asks_for_the_time
        "enum",
        "functools",
        "hashlib",
        "hmac",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "reprlib",
        "secrets",  # the key of the digests that stand for secrets, where a process was given none (classify/redact.py)
        "shlex",  # quotes the command that a card names
        "statistics",
        "sys",  # the names of Python's own modules: see test_the_pure_part_takes_only_names_from_sys_and_builtins
        "tomllib",
        "types",
        "typing",
        "urllib.parse",
        "warnings",  # a script's own, of an invalid escape and the like, are no warnings of ours (classify/source/script.py)
    }
)
# The names of supervisord's modules, which share the import name `supervisor` with ours (supervisor 4.2.5 to 4.3.0).
# fmt: off
SUPERVISORD = frozenset({
    "childutils", "compat", "confecho", "datatypes", "dispatchers", "events", "http", "http_client", "loggers", "medusa",
    "options", "pidproxy", "poller", "process", "rpcinterface", "scripts", "skel", "socket_manager", "states", "supervisorctl",
    "supervisord", "templating", "tests", "ui", "web", "xmlrpc",
})
# fmt: on
#: The nearest known name of a word, a pure function; a job's failure is never an exception (core/model.py), so nothing else of that module.
PURE_ELSEWHERE = {"supervisor.classify.logs.rows": {"supervisor.errors", "supervisor.errors.nearest"}}
TORCH_ALLOWED = (
    "supervisor.agent",
    "supervisor.instrument",
    "checkpointing.conversion.sources",
    "checkpointing.conversion.targets",
    "checkpointing.conversion.trees",
    "checkpointing.conversion.work",
    "checkpointing.training.broadcast",
    "checkpointing.training.load",
    "checkpointing.training.ranks",
    "checkpointing.training.sampler",
    "checkpointing.training.save",
    "checkpointing.training.state",
    "health.nodecheck.__main__",
    "health.nodecheck.measure",
)


@dataclass(frozen=True)
class Import:
    """One imported module, and where."""

    importer: str
    line: int
    target: str

    def __str__(self) -> str:
        """Tell it so that an editor finds it."""
        return f"{self.importer}:{self.line} imports {self.target}"


def within(module: str, packages: tuple[str, ...] | str) -> bool:
    packages = (packages,) if isinstance(packages, str) else packages
    return any(module == package or module.startswith(package + ".") for package in packages)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield each statement, without the expressions: ten times as many, in which no import stands but a call."""
    rest = [tree]
    while rest:
        node = rest.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            rest += below if isinstance(below := getattr(node, part, ()), list) else ()


def imports_of(source: str, module: str, *, is_package: bool = False) -> list[Import]:
    imports: list[Import] = []
    tree = ast.parse(source)
    for node in ast.walk(tree) if re.search("__import__|import_module", source) else statements_of(tree):
        if isinstance(node, ast.Import):
            imports += [Import(module, node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = module.split(".")
                depth = anchor[: len(anchor) - node.level + is_package]
                base = ".".join([*depth, *([node.module] if node.module else [])])
            imports.append(Import(module, node.lineno, base))
            # `from package import module` imports the module too
            imports += [Import(module, node.lineno, f"{base}.{alias.name}") for alias in node.names if base.split(".")[0] in PACKAGES]
        elif (
            isinstance(node, ast.Call)
            and (getattr(node.func, "id", "") or getattr(node.func, "attr", "")) in {"__import__", "import_module"}
            and ast.unparse(node.func) in {"__import__", "importlib.import_module", "import_module"}
        ):
            imports += [Import(module, node.lineno, str(arg.value)) for arg in node.args[:1] if isinstance(arg, ast.Constant)]
    return imports


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@functools.cache
def imports() -> tuple[Import, ...]:
    """Every import of ours: read once, and only where a test asks."""
    return tuple(
        edge for path in sources() for edge in imports_of(path.read_text("utf-8"), module_name(path), is_package=path.name == "__init__.py")
    )


def listing(wrong: list[Import]) -> str:
    return "\n".join(map(str, wrong))


def test_there_is_something_to_look_at() -> None:
    importers = {edge.importer for edge in imports()}
    assert {"supervisor.core.machine", "supervisor.cli.main", "checkpointing.select"} <= importers
    assert any(within(edge.importer, "supervisor.agent") and edge.target.startswith("torch") for edge in imports())


@pytest.mark.parametrize(
    ("source", "targets"),
    [
        ("import os.path as p, re", ["os.path", "re"]),
        ("from supervisor.core import model", ["supervisor.core", "supervisor.core.model"]),
        ("from . import model", ["supervisor.core", "supervisor.core.model"]),
        ("from ..errors import SuperviseError", ["supervisor.errors", "supervisor.errors.SuperviseError"]),
        ("def f():\n    import socket", ["socket"]),
        ("if TYPE_CHECKING:\n    import torch", ["torch"]),
        ("import importlib\nimportlib.import_module('torch')", ["importlib", "torch"]),
    ],
)
def test_every_way_to_import_is_seen(source: str, targets: list[str]) -> None:
    assert [edge.target for edge in imports_of(source, "supervisor.core.machine")] == targets


@pytest.mark.parametrize("package", ["health", "checkpointing"])
def test_a_standalone_package_never_imports_the_supervisor(package: str) -> None:
    wrong = [edge for edge in imports() if within(edge.importer, package) and within(edge.target, "supervisor")]
    assert not wrong, listing(wrong)


def test_the_pure_part_imports_only_itself_and_harmless_modules() -> None:
    wrong = [
        edge
        for edge in imports()
        if within(edge.importer, PURE)
        and not within(edge.target, PURE)
        and edge.target not in {"supervisor", "supervisor.knobs", "health", "health.nvidia"}
        and edge.target not in PURE_ELSEWHERE.get(edge.importer, ())
        and (edge.importer, edge.target.split(".")[0]) != ("supervisor.core.values", "msgspec")  # the base of its values
        and not ({edge.target, edge.target.split(".")[0]} & PURE_STANDARD_LIBRARY and edge.target.split(".")[0] in sys.stdlib_module_names)
    ]
    assert not wrong, listing(wrong)


def test_the_pure_part_opens_and_prints_nothing() -> None:
    builtins = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} calls {node.func.id}"
        for path in sources()
        if within(module_name(path), PURE)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in builtins
    ]
    assert wrong == []


def test_the_pure_part_takes_only_names_from_sys_and_builtins() -> None:
    allowed = {"sys.stdlib_module_names", "hasattr(builtins, chain[0])"}
    wrong = []
    for path in sources():
        text = path.read_text("utf-8")
        if not within(module_name(path), PURE) or not re.search(r"import (sys|builtins)|from (sys|builtins) ", text):
            continue
        tree = ast.parse(text)
        fit = {id(name) for node in ast.walk(tree) if ast.unparse(node) in allowed for name in ast.walk(node)}
        wrong += [
            f"{path.relative_to(ROOT)}:{node.lineno} uses {node.id}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and node.id in {"sys", "builtins"} and id(node) not in fit
        ]
        wrong += [
            f"{path.relative_to(ROOT)}:{node.lineno} imports from {node.module}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in {"sys", "builtins"}
        ]
    assert wrong == []


def test_no_pure_module_asks_for_the_time() -> None:
    clocks = {"now", "today", "utcnow", "astimezone"}  # the last one reads the zone of this machine
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} calls {ast.unparse(node.func)}"
        for path in sources()
        if within(module_name(path), PURE)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in clocks
    ]
    assert wrong == []


def test_no_module_imports_another_that_imports_it_back() -> None:
    modules = {module_name(path) for path in sources()}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for edge in imports():
        # `from package import module` imports the package's file as well, as every import of what is in it does
        if edge.target in modules and edge.target != edge.importer and not within(edge.importer, edge.target):
            graph[edge.importer].add(edge.target)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def test_torch_is_imported_where_it_is_named_only() -> None:
    wrong = [edge for edge in imports() if within(edge.target, "torch") and not within(edge.importer, TORCH_ALLOWED)]
    assert not wrong, listing(wrong)


def test_light_packages_import_the_standard_library_only() -> None:
    """The guardian runs under `python -I -S`; the shim rides in other people's processes."""
    light = ("supervisor.guardian", "supervisor.instrument")
    rank_side = {
        "torch",
        "_supervise_shim",
        "_supervise_drill",
        "_supervise_soak",
        "sitecustomize",
    }  # our own names in a rank, and what it imports itself
    wrong = [
        edge
        for edge in imports()
        if within(edge.importer, light)
        and edge.target.split(".")[0] not in sys.stdlib_module_names
        and not within(edge.target, (*light, "guardian"))  # the guardian is run by its directory, as a package of that name
        and not (within(edge.importer, "supervisor.instrument") and edge.target.split(".")[0] in rank_side)
    ]
    assert not wrong, listing(wrong)


def test_no_module_bears_a_name_of_supervisords() -> None:
    packages = {path.relative_to(ROOT / "supervisor").parts[0].removesuffix(".py") for path in (ROOT / "supervisor").rglob("*.py")}
    assert packages & SUPERVISORD == set()


def test_no_module_relies_on_the_shared_package_file() -> None:
    """The package file of `supervisor` belongs to whichever distribution was installed last."""
    modules = {module_name(path) for path in sources()}
    wrong = [edge for edge in imports() if edge.target.count(".") == 1 and within(edge.target, "supervisor") and edge.target not in modules]
    assert not wrong, listing(wrong)
    statements = ast.parse((ROOT / "supervisor" / "__init__.py").read_text("utf-8")).body
    assert [type(statement) for statement in statements] == [ast.Expr, ast.Import, ast.Assign]
